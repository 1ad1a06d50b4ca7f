"""Where the rows of a step come from: arrays in memory, or parts on disk, one after the other."""

from bisect import bisect_right
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from swsgp.arrays import padded
from swsgp.data.batches import RowStream
from swsgp.data.stores import Store
from swsgp.fit.neighbours import NeighbourTable, last_refresh
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
    """All rows at once. With `n_neighbors`, active sets come from a table; without, a step searches itself."""

    def __init__(self, x: np.ndarray, y: np.ndarray, batch_size: int, seed: int, n_neighbors: int | None):
        self._stream = RowStream(len(x), batch_size, seed)
        self.n_rows, self.batch_size = len(x), self._stream.batch_size
        self._x, self._y = jnp.asarray(padded(x)), jnp.asarray(padded(y))
        self._table = None if n_neighbors is None else NeighbourTable(x, n_neighbors)

    def batches(self, first: int, n_steps: int) -> np.ndarray:
        """Row numbers in the window of some consecutive steps."""
        return self._stream.batches(first, n_steps)

    def window(self, step: int, stop: int, metric: Covariance | None, inducing: np.ndarray) -> Window:
        """From some step on, with neighbours in this metric until the step `stop`."""
        if self._table is None or metric is None:
            return Window(0, NEVER, self._x, self._y, None)
        # From the last search on, wherever a run goes on from, so that it finds what it had found; and a step that has
        # to be taken back needs its neighbours, too.
        first = max(0, last_refresh(step) - 1)
        # Past one epoch every row comes up.
        n_steps_of_epoch = -(-self.n_rows // self.batch_size)
        rows = (
            self.batches(first, stop - first).ravel()
            if stop - first < n_steps_of_epoch
            else np.arange(self.n_rows, dtype=np.int32)
        )
        return Window(0, stop, self._x, self._y, jnp.asarray(padded(self._table.refresh(metric, inducing, rows))))


class OnDisk:
    """The parts of a store, in another order in each epoch, and the rows of each in another order each time.

    The next part is read, and its neighbours are found, while the steps of one are taken. Neighbours stay on disk
    beside their part until the metric is another.
    """

    def __init__(self, store: Store, batch_size: int, seed: int, n_neighbors: int | None):
        self.n_rows, self.batch_size = store.n_rows, min(batch_size, min(store.sizes))
        self._store, self._seed, self._n_neighbors = store, seed, n_neighbors
        # The rows of a part that do not fill a batch are left out until next time, which will be others.
        self._steps = [size // self.batch_size for size in store.sizes]
        self._found: dict[int, int] = {}
        self._thread = ThreadPoolExecutor(1)
        self._next: tuple[tuple[int, int], Future[Window]] | None = None

    def batches(self, first: int, n_steps: int) -> np.ndarray:
        """Row numbers in the window of some consecutive steps, which must be of one part."""
        epoch, part, start, _ = self._place(first)
        order = np.random.default_rng((self._seed, epoch, part)).permutation(self._store.sizes[part]).astype(np.int32)
        offset = (first - start) * self.batch_size
        return order[offset : offset + n_steps * self.batch_size].reshape(n_steps, self.batch_size)

    def window(self, step: int, stop: int, metric: Covariance | None, inducing: np.ndarray) -> Window:
        """From some step on to the end of its part, with neighbours in this metric until the step `stop`."""
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
        longest = max(self._store.sizes)
        neighbours = None
        if self._n_neighbors is not None and metric is not None:
            if self._found.get(part) == stop:
                found = self._store.kept(part, self._n_neighbors)
            else:
                found = SearchInducing(metric, inducing, approximate=True)(x, self._n_neighbors)
                self._store.keep(part, found)
                self._found[part] = stop
            neighbours = jnp.asarray(_longer(found, longest))
            last = min(last, stop)
        return Window(first, last, jnp.asarray(_longer(x, longest)), jnp.asarray(_longer(y, longest)), neighbours)

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


def _longer(array: np.ndarray, length: int) -> np.ndarray:
    """With rows of 0 at the end, so that all parts share one compiled program."""
    return np.concatenate([array, np.zeros((length - len(array), *array.shape[1:]), array.dtype)])
