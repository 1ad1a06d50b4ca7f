"""The table of active sets of all training rows, for inducing inputs that do not move."""

from collections.abc import Callable

import jax
import numpy as np

from swsgp.gp.active import SearchInducing
from swsgp.gp.covariances import Covariance
from swsgp.memory import check_device_memory, check_memory

# Lengthscales move little in the first steps, so the first refresh after the start is at this step.
FIRST_REFRESH = 64


def next_refresh(step: int) -> int:
    """The step after `step` at which neighbours are searched again: 64, 80, 96, 112, 128, 160, …"""
    return FIRST_REFRESH if step < FIRST_REFRESH else last_refresh(step) + (1 << _bits_of_rest(step))


def last_refresh(step: int) -> int:
    """The step up to `step` at which neighbours were searched last."""
    return 0 if step < FIRST_REFRESH else step >> _bits_of_rest(step) << _bits_of_rest(step)


def _bits_of_rest(step: int) -> int:
    # Four times in an octave: with once, lengthscales of long runs were far from those of the neighbours, and scores
    # fell at each search.
    return step.bit_length() - 3


# Rows whose neighbours are found at once.
_AT_ONCE = 1 << 17


class NeighbourTable:
    """Nearest inducing inputs of training rows in the metric learned so far, and rows of 0 up to some length.

    Only the rows that come up before the next refresh are searched: a short run on a long table never pays for
    rows that it does not see.
    """

    def __init__(self, x: np.ndarray, n_neighbors: int, length: int | None = None, n_devices: int = 1):
        length = len(x) if length is None else length
        what = f"the table of n_neighbors={n_neighbors} neighbours of {len(x):,} rows"
        advice, n_bytes = "lower n_neighbors, or use fewer rows", 4.0 * length * n_neighbors
        # Here, and where the steps are taken: several devices have a part each.
        is_here = jax.default_backend() == "cpu"
        check_memory(what, (1.0 + is_here) * n_bytes, advice)
        check_device_memory(what, n_bytes / n_devices, advice)
        self.table = np.zeros((length, n_neighbors), dtype=np.int32)
        self._x = x

    def refresh(
        self,
        metric: Covariance,
        inducing: np.ndarray,
        rows: np.ndarray,
        report: Callable[[float], None] = lambda share: None,
    ) -> np.ndarray:
        """The table with these rows up to date; others may be out of date. Reports the share that is done."""
        # Sorted, each once; sorting takes far longer than this.
        is_asked = np.zeros(len(self._x), dtype=bool)
        is_asked[rows.ravel()] = True
        rows = np.flatnonzero(is_asked)
        search = SearchInducing(metric, inducing, n_approximate=len(rows))
        n_parts = -(-len(rows) // _AT_ONCE)
        for i in range(n_parts):
            report(i / n_parts)
            # Of all the table, since a search learns from the first part how best to go on.
            some = rows[i::n_parts]
            self.table[some] = search(self._x[some], self.table.shape[1])
        return self.table
