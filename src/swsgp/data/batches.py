"""Which rows make up which mini-batch."""

import math

import numpy as np

# Lanes at most, and rows of a lane at least.
_MAX_LANES, LEAST_ROWS = 64, 256


def n_lanes_of(n_rows: int, batch_size: int) -> int:
    """Into how many lanes rows are dealt; a power of two, so that 2, 4, 8, … devices can share them."""
    n_lanes = math.gcd(batch_size, _MAX_LANES)
    while n_lanes > 1 and n_rows < LEAST_ROWS * n_lanes:
        n_lanes //= 2
    return n_lanes


class RowStream:
    """An endless stream of row numbers, cut into mini-batches.

    Rows are dealt out to lanes, row n to lane n mod L. Each lane gives one random order of its rows after the other,
    and each batch has as many rows of one lane as of another, lane after lane. So a device that has all rows of some
    lanes has its share of every batch, and batches do not depend on how many devices there are. Where the lanes are
    not equally long, rows of a longer one come up more seldom, by one in at least 256. With `whole_batches` there is
    one lane, and a batch is in random order.

    The batch of a step depends on the seed and the step alone, so training can stop and go on anywhere.
    """

    def __init__(self, n_rows: int, batch_size: int, seed: int, whole_batches: bool = False):
        self.n_rows = n_rows
        self.batch_size = min(batch_size, n_rows)
        self.n_lanes = 1 if whole_batches else n_lanes_of(n_rows, self.batch_size)
        self._seed = seed
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def batches(self, first: int, n_steps: int) -> np.ndarray:
        """Row numbers of some consecutive steps, shape (n_steps, batch_size)."""
        size = self.batch_size // self.n_lanes
        start, stop = first * size, (first + n_steps) * size
        orders: dict[tuple[int, int], np.ndarray] = {}
        parts = []
        # The first lanes have a row more than the others.
        n_longer = self.n_rows % self.n_lanes
        for lanes in (range(n_longer), range(n_longer, self.n_lanes)):
            if not lanes:
                continue
            n_rows = len(range(lanes[0], self.n_rows, self.n_lanes))
            epochs = range(start // n_rows, (stop - 1) // n_rows + 1)
            orders |= {(lanes[0], epoch): self._order(lanes, epoch, n_rows) for epoch in epochs}
            rows = np.concatenate([orders[lanes[0], epoch] for epoch in epochs], axis=1)
            offset = start - epochs[0] * n_rows
            of_steps = rows[:, offset : offset + stop - start].reshape(len(lanes), n_steps, size)
            parts.append(of_steps.transpose(1, 0, 2).reshape(n_steps, -1))
        self._orders = orders
        return np.concatenate(parts, axis=1)

    def _order(self, lanes: range, epoch: int, n_rows: int) -> np.ndarray:
        """The rows of some lanes of the same length, each in random order."""
        kept = self._orders.get((lanes[0], epoch))
        if kept is not None:
            return kept
        rows = np.asarray(lanes, np.int32)[:, None] + self.n_lanes * np.arange(n_rows, dtype=np.int32)
        return np.random.default_rng((self._seed, epoch, lanes[0])).permuted(rows, axis=1)


def split_held_out(n_rows: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers to train on and to hold out, both sorted; at least one row on each side."""
    order = np.random.default_rng((seed, n_rows)).permutation(n_rows)
    n_held = min(max(1, round(fraction * n_rows)), n_rows - 1)
    return np.sort(order[n_held:]), np.sort(order[:n_held])
