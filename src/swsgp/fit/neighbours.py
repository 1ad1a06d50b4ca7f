"""The table of active sets of all training rows, for inducing inputs that do not move."""

import numpy as np

from swsgp.gp.active import SearchInducing
from swsgp.gp.covariances import Covariance
from swsgp.memory import check_memory

# Lengthscales move little in the first steps, so the first refresh after the start is at this step.
FIRST_REFRESH = 64


def next_refresh(step: int) -> int:
    """The step after `step` at which neighbours are searched again: 64, 128, 256, …"""
    return max(FIRST_REFRESH, 1 << step.bit_length())


def last_refresh(step: int) -> int:
    """The step up to `step` at which neighbours were searched last."""
    return 0 if step < FIRST_REFRESH else 1 << (step.bit_length() - 1)


class NeighbourTable:
    """Nearest inducing inputs of training rows in the metric learned so far.

    Only the rows that come up before the next refresh are searched: a short run on a long table never pays for
    rows that it does not see.
    """

    def __init__(self, x: np.ndarray, n_neighbors: int):
        # Here, and where the steps are taken.
        check_memory(
            f"the table of n_neighbors={n_neighbors} neighbours of {len(x):,} rows",
            8.0 * len(x) * n_neighbors,
            "lower n_neighbors, or use fewer rows",
        )
        self.table = np.zeros((len(x), n_neighbors), dtype=np.int32)
        self._x = x

    def refresh(self, metric: Covariance, inducing: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The table with these rows up to date; rows outside them may be out of date."""
        # Sorted, each once; sorting takes far longer than this.
        is_asked = np.zeros(len(self._x), dtype=bool)
        is_asked[rows.ravel()] = True
        rows = np.flatnonzero(is_asked)
        search = SearchInducing(metric, inducing, approximate=True)
        self.table[rows] = search(self._x[rows], self.table.shape[1])
        return self.table
