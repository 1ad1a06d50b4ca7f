"""The nearest of very many points with many columns, approximately: as many of FAISS's inverted lists as it takes."""

import warnings
from functools import cache
from importlib.util import find_spec

import numpy as np

from swsgp.errors import FitWarning

# The share of the true neighbours of some points that must be found, and how many points these are.
LEAST_RECALL, _N_SAMPLE = 0.95, 256
# Rows that are searched for at once, after which an interruption is noticed.
_AT_ONCE = 1 << 15
# Points for each list that its centre is found from.
_POINTS_PER_LIST = 64


@cache
def is_installed() -> bool:
    """Whether FAISS is there; says so once if it is not."""
    found = find_spec("faiss") is not None
    if not found:
        warnings.warn(
            "finding the nearest inducing inputs of all rows takes more than a minute each time; install swsgp[faiss] "
            "for a faster search.",
            FitWarning,
            stacklevel=2,
        )
    return found


class Lists:
    """Points (N, D), in lists of those near one another."""

    def __init__(self, z: np.ndarray):
        import faiss

        self._z = np.ascontiguousarray(z, np.float32)
        n_columns, n_lists = z.shape[1], max(1, int(4 * np.sqrt(len(z))))
        self._lists = faiss.IndexIVFFlat(faiss.IndexFlatL2(n_columns), n_columns, n_lists)
        self._lists.cp.max_points_per_centroid, self._lists.cp.min_points_per_centroid = _POINTS_PER_LIST, 1
        self._lists.train(self._z)
        self._lists.add(self._z)
        self._everything = faiss.IndexFlatL2(n_columns)
        self._everything.add(self._z)
        self._is_known = False

    def __call__(self, x: np.ndarray, n: int) -> np.ndarray:
        """int32 indices of n points near each row of x, nearest first: at least 95% of the true ones on average.

        The more lists are looked at, the more is found; a sample of the first rows asked for says how many it takes.
        """
        x = np.ascontiguousarray(x, np.float32)
        if not self._is_known:
            self._widen(x[np.random.default_rng(0).permutation(len(x))[:_N_SAMPLE]], n)
        parts = (x[start : start + _AT_ONCE] for start in range(0, len(x), _AT_ONCE))
        found = np.concatenate([self._lists.search(part, n)[1].astype(np.int32) for part in parts])
        # The lists that were looked at may hold fewer than n.
        short = np.flatnonzero(found[:, -1] < 0)
        if len(short):
            found[short] = self._everything.search(x[short], n)[1]
        return found

    def _widen(self, sample: np.ndarray, n: int) -> None:
        """Look at as many lists as it takes, and say what is found in them."""
        self._is_known, self._lists.nprobe = True, 1
        true = self._everything.search(sample, n)[1]
        while True:
            found = self._lists.search(sample, n)[1]
            recall = float(np.mean([len(np.intersect1d(*pair)) / n for pair in zip(found, true, strict=True)]))
            if recall >= LEAST_RECALL or self._lists.nprobe >= self._lists.nlist:
                break
            self._lists.nprobe = min(2 * self._lists.nprobe, self._lists.nlist)
        warnings.warn(
            f"the nearest of {len(self._z):,} inducing inputs are found approximately, {recall:.1%} of them in a "
            f"sample of {len(sample)} rows.",
            FitWarning,
            stacklevel=3,
        )
