"""Which rows make up which mini-batch."""

import numpy as np


class RowStream:
    """An endless stream of row numbers, cut into mini-batches: one random order of all rows after the other.

    The batch of a step depends on the seed and the step alone, so training can stop and go on anywhere.
    """

    def __init__(self, n_rows: int, batch_size: int, seed: int):
        self.n_rows = n_rows
        self.batch_size = min(batch_size, n_rows)
        self._seed = seed
        self._orders: dict[int, np.ndarray] = {}

    def batches(self, first: int, n_steps: int) -> np.ndarray:
        """Row numbers of some consecutive steps, shape (n_steps, batch_size)."""
        start, stop = first * self.batch_size, (first + n_steps) * self.batch_size
        epochs = range(start // self.n_rows, (stop - 1) // self.n_rows + 1)
        self._orders = {epoch: self._order(epoch) for epoch in epochs}
        rows = np.concatenate([self._orders[epoch] for epoch in epochs])
        offset = start - epochs[0] * self.n_rows
        return rows[offset : offset + stop - start].reshape(n_steps, self.batch_size)

    def _order(self, epoch: int) -> np.ndarray:
        kept = self._orders.get(epoch)
        if kept is not None:
            return kept
        return np.random.default_rng((self._seed, epoch)).permutation(self.n_rows).astype(np.int32)


def split_held_out(n_rows: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers to train on and to hold out, both sorted; at least one row on each side."""
    order = np.random.default_rng((seed, n_rows)).permutation(n_rows)
    n_held = min(max(1, round(fraction * n_rows)), n_rows - 1)
    return np.sort(order[n_held:]), np.sort(order[:n_held])
