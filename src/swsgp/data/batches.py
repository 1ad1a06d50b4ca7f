"""Which rows make up which mini-batch."""

import math

import numpy as np

# Lanes at most, and rows of a lane at least.
_MAX_LANES, _LEAST_ROWS = 64, 64


def n_lanes_of(n_rows: int, batch_size: int) -> int:
    """Into how many lanes rows are dealt; a power of two, so that 2, 4, 8, … devices can share them."""
    n_lanes = math.gcd(batch_size, _MAX_LANES)
    while n_lanes > 1 and n_rows < _LEAST_ROWS * n_lanes:
        n_lanes //= 2
    return n_lanes


class RowStream:
    """An endless stream of row numbers, cut into mini-batches.

    Rows are dealt out to lanes, row n to lane n mod L. Each lane gives one random order of its rows after the other,
    and each batch has as many rows of one lane as of another, lane after lane. So a device that has all rows of some
    lanes has its share of every batch, and batches do not depend on how many devices there are. Where the lanes are
    not equally long, rows of a longer one come up more seldom, by one in at least 64.

    The batch of a step depends on the seed and the step alone, so training can stop and go on anywhere.
    """

    def __init__(self, n_rows: int, batch_size: int, seed: int):
        self.n_rows = n_rows
        self.batch_size = min(batch_size, n_rows)
        self.n_lanes = n_lanes_of(n_rows, self.batch_size)
        self._seed = seed
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def batches(self, first: int, n_steps: int) -> np.ndarray:
        """Row numbers of some consecutive steps, shape (n_steps, batch_size)."""
        orders: dict[tuple[int, int], np.ndarray] = {}
        parts = []
        size = self.batch_size // self.n_lanes
        start, stop = first * size, (first + n_steps) * size
        for lane in range(self.n_lanes):
            n_rows = len(range(lane, self.n_rows, self.n_lanes))
            epochs = range(start // n_rows, (stop - 1) // n_rows + 1)
            orders |= {(lane, epoch): self._order(lane, epoch, n_rows) for epoch in epochs}
            rows = np.concatenate([orders[lane, epoch] for epoch in epochs])
            offset = start - epochs[0] * n_rows
            parts.append(rows[offset : offset + stop - start].reshape(n_steps, size))
        self._orders = orders
        return np.concatenate(parts, axis=1)

    def _order(self, lane: int, epoch: int, n_rows: int) -> np.ndarray:
        kept = self._orders.get((lane, epoch))
        if kept is not None:
            return kept
        order = np.random.default_rng((self._seed, epoch, lane)).permutation(n_rows)
        return (lane + self.n_lanes * order).astype(np.int32)


def split_held_out(n_rows: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers to train on and to hold out, both sorted; at least one row on each side."""
    order = np.random.default_rng((seed, n_rows)).permutation(n_rows)
    n_held = min(max(1, round(fraction * n_rows)), n_rows - 1)
    return np.sort(order[n_held:]), np.sort(order[:n_held])
