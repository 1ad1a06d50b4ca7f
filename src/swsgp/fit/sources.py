"""Where the rows of a step come from: arrays in memory, or parts on disk, one after the other."""

from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from swsgp.arrays import padded_length
from swsgp.data.batches import RowStream
from swsgp.data.stores import Store
from swsgp.fit.neighbours import NeighbourTable, last_refresh
from swsgp.fit.shards import Shards
from swsgp.gp.active import SearchInducing
from swsgp.gp.covariances import Covariance
from swsgp.shapes import Array, precision_scope

# A step that no run reaches.
NEVER = 1 << 62


class Window(NamedTuple):
    """Rows on the device, and their neighbours if these are known, for the steps from `first` to before `stop`."""

    first: int
    stop: int
    x: Array
    y: Array
    neighbours: Array | None

    def has(self, step: int) -> bool:
        return self.first <= step < self.stop


class InMemory:
    """All rows at once, each on the device that has its lane.

    With `n_neighbors`, active sets come from a table; without, a step searches itself.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        batch_size: int,
        seed: int,
        n_neighbors: int | None,
        whole_batches: bool = False,
    ):
        self._stream = RowStream(len(x), batch_size, seed, whole_batches)
        self.n_rows, self.batch_size = len(x), self._stream.batch_size
        self.shards = Shards(self._stream.n_lanes, whole_batches)
        # A row's place is that among those of its process, device after device; the first has as many rows as any.
        self._ends, self._place = np.array([len(x)]), None
        self._length = padded_length(len(x))
        if self.shards.n_devices > 1:
            device = np.arange(len(x)) % self.shards.n_lanes // self.shards.lanes
            rows = [np.flatnonzero(device == number) for number in self.shards.own]
            own = np.concatenate(rows)
            self._ends, self._length = np.cumsum([len(part) for part in rows]), padded_length(int((device == 0).sum()))
            self._place = np.zeros(len(x), np.int32)
            self._place[own] = np.arange(len(own))
            x, y = x[own], y[own]
        self._x, self._y = self._on_devices(x), self._on_devices(y)
        # That of one device goes there as it is.
        length = self._length if self.shards.n_devices == 1 else None
        n_devices = len(self.shards.own)
        self._table = None if n_neighbors is None else NeighbourTable(x, n_neighbors, length, n_devices)

    def batches(self, first: int, n_steps: int) -> np.ndarray:
        """The rows of some consecutive steps: for each device of this process, numbers among its own."""
        own = self._own(first, n_steps).reshape(n_steps, len(self._ends), -1)
        starts = np.concatenate([[0], self._ends[:-1]]).astype(np.int32)
        return (own - starts[:, None]).reshape(n_steps, -1)

    def window(
        self, step: int, stop: int, metric: Covariance | None, inducing: np.ndarray, report: Callable[[float], None]
    ) -> Window:
        """From some step on, with neighbours in this metric until the step `stop`; reports how far their search is."""
        if self._table is None or metric is None:
            return Window(0, NEVER, self._x, self._y, None)
        # From the last search on, wherever a run goes on from, so that it finds what it had found; and a step that has
        # to be taken back needs its neighbours, too.
        first = max(0, last_refresh(step) - 1)
        # Past one epoch every row comes up.
        n_steps_of_epoch = -(-self.n_rows // self.batch_size)
        rows = (
            self._own(first, stop - first).ravel()
            if stop - first < n_steps_of_epoch
            else np.arange(self._ends[-1], dtype=np.int32)
        )
        table = self._table.refresh(metric, inducing, rows, report)
        on_devices = self.shards.split(table) if self.shards.n_devices == 1 else self._on_devices(table)
        return Window(0, stop, self._x, self._y, on_devices)

    def _own(self, first: int, n_steps: int) -> np.ndarray:
        """The rows of some consecutive steps that this process has, as numbers among its own."""
        rows = self.shards.of_batches(self._stream.batches(first, n_steps))
        return rows if self._place is None else self._place[rows]

    def _on_devices(self, array: np.ndarray) -> Array:
        return _on_devices(self.shards, np.split(array, self._ends[:-1]), self._length)


class OnDisk:
    """The parts of a store, in another order in each epoch, and the rows of each lane in another order each time.

    The next part is read, and its neighbours are found, while the steps of one are taken. Neighbours stay on disk
    beside their part until the metric is another.
    """

    def __init__(self, store: Store, batch_size: int, seed: int, n_neighbors: int | None, whole_batches: bool = False):
        n_lanes = store.sizes.shape[1]
        self.n_rows, self.shards = store.n_rows, Shards(n_lanes, whole_batches)
        # As many rows of each lane.
        self._of_lane = min(batch_size // n_lanes, int(store.sizes.min()))
        self.batch_size = n_lanes * self._of_lane
        self._store, self._seed, self._n_neighbors = store, seed, n_neighbors
        # The rows of a part that do not fill a batch are left out until next time, which will be others.
        self._steps = (store.sizes.min(axis=1) // self._of_lane).tolist()
        of_devices = store.sizes.reshape(len(store.sizes), -1, self.shards.lanes).sum(axis=2)
        self._longest = int(of_devices.max())
        self._found: dict[int, int] = {}
        # The search in the metric of the steps before some step.
        self._search: tuple[int, SearchInducing] | None = None
        self._thread = ThreadPoolExecutor(1)
        self._next: tuple[tuple[int, int], Future[Window]] | None = None

    def batches(self, first: int, n_steps: int) -> np.ndarray:
        """The rows of some consecutive steps, which must be of one part, as `InMemory` gives them."""
        epoch, part, start, _ = self._place(first)
        offset, sizes, columns = (first - start) * self._of_lane, self._store.sizes[part], []
        for lane in self._store.own:
            order = np.random.default_rng((self._seed, epoch, part, lane)).permutation(sizes[lane])
            # After the lanes of the same device before it.
            before = sizes[lane - lane % self.shards.lanes : lane].sum()
            rows = before + order[offset : offset + n_steps * self._of_lane]
            columns.append(rows.reshape(n_steps, self._of_lane))
        return np.concatenate(columns, axis=1).astype(np.int32)

    def window(
        self, step: int, stop: int, metric: Covariance | None, inducing: np.ndarray, report: Callable[[float], None]
    ) -> Window:
        """From some step on to the end of its part, with neighbours in this metric until the step `stop`.

        The search of one part takes too little time for a report.
        """
        _, _, first, last = self._place(step)
        waiting, self._next = self._next, None
        # Also where it is not what is wanted: two loads at once would write to the same file.
        ready = {} if waiting is None else {waiting[0]: waiting[1].result()}
        window = ready.get((first, stop)) or self._load(step, stop, metric, inducing)
        if last < stop:
            self._next = (last, stop), self._thread.submit(self._load, last, stop, metric, inducing)
        return window

    def close(self) -> None:
        """End the thread, after what it is at."""
        self._thread.shutdown(cancel_futures=True)

    def _load(self, step: int, stop: int, metric: Covariance | None, inducing: np.ndarray) -> Window:
        # Each thread has a precision of its own.
        with precision_scope(self._store.precision):
            return self._loaded(step, stop, metric, inducing)

    def _loaded(self, step: int, stop: int, metric: Covariance | None, inducing: np.ndarray) -> Window:
        _, part, first, last = self._place(step)
        x, y = self._store.part(part)
        neighbours = None
        if self._n_neighbors is not None and metric is not None:
            if self._found.get(part) == stop:
                found = self._store.kept(part, self._n_neighbors)
            else:
                if self._search is None or self._search[0] != stop:
                    self._search = None
                    self._search = stop, SearchInducing(metric, inducing, n_approximate=self.n_rows)
                found = self._search[1](x, self._n_neighbors)
                self._store.keep(part, found)
                self._found[part] = stop
            neighbours = self._on_devices(part, found)
            last = min(last, stop)
        return Window(first, last, self._on_devices(part, x), self._on_devices(part, y), neighbours)

    def _on_devices(self, part: int, array: np.ndarray) -> Array:
        sizes = self._store.sizes[part, self._store.own].reshape(-1, self.shards.lanes).sum(axis=1)
        return _on_devices(self.shards, np.split(array, np.cumsum(sizes)[:-1]), self._longest)

    def _place(self, step: int) -> tuple[int, int, int, int]:
        """The epoch and the part of a step, and the part's first step and the one after its last."""
        epoch, within = divmod(step, sum(self._steps))
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self._steps))
        ends = np.cumsum([self._steps[part] for part in order])
        position = bisect_right(ends, within)
        start = step - within
        return (
            epoch,
            int(order[position]),
            start + int(ends[position] - self._steps[order[position]]),
            start + int(ends[position]),
        )


def _on_devices(shards: Shards, parts: list[np.ndarray], length: int) -> Array:
    """Each device's rows, all with rows of 0 after them up to one length, so that windows share a compiled program."""
    together = np.zeros((len(parts), length, *parts[0].shape[1:]), parts[0].dtype)
    for own, part in zip(together, parts, strict=True):
        own[: len(part)] = part
    return shards.split(together.reshape(-1, *parts[0].shape[1:]))
