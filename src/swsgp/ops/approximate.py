"""The nearest of very many points with many columns, approximately: as many of FAISS's inverted lists as it takes."""

import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from swsgp.errors import FitWarning

# The share of the true neighbours of some points that must be found, and how many points these are.
LEAST_RECALL, _N_SAMPLE = 0.95, 256
# Points for each list that its centre is found from.
_POINTS_PER_LIST = 64


@cache
def is_installed() -> bool:
    """Whether FAISS is there; says so once if it is not."""
    found = find_spec("faiss") is not None
    if not found:
        warnings.warn(
            "every inducing input is looked at to find the nearest ones; install swsgp[faiss] for a faster search.",
            FitWarning,
            stacklevel=2,
        )
    return found


def nearest_few(x: np.ndarray, z: np.ndarray, n: int) -> np.ndarray:
    """int32 indices of n rows of z near each row of x, nearest first: at least 95% of the true ones on average.

    The more lists are looked at, the more is found; a sample of x says how many it takes.
    """
    import faiss

    x, z = (np.ascontiguousarray(part, np.float32) for part in (x, z))
    n_lists = max(1, int(4 * np.sqrt(len(z))))
    lists = faiss.IndexIVFFlat(faiss.IndexFlatL2(z.shape[1]), z.shape[1], n_lists)
    lists.cp.max_points_per_centroid, lists.cp.min_points_per_centroid = _POINTS_PER_LIST, 1
    lists.train(z)
    lists.add(z)
    everything = faiss.IndexFlatL2(z.shape[1])
    everything.add(z)
    sample = x[np.random.default_rng(0).permutation(len(x))[:_N_SAMPLE]]
    recall = _widened(lists, sample, everything.search(sample, n)[1])
    found = lists.search(x, n)[1]
    # The lists that were looked at may hold fewer than n.
    short = np.flatnonzero(found[:, -1] < 0)
    if len(short):
        found[short] = everything.search(x[short], n)[1]
    warnings.warn(
        f"the nearest of {len(z):,} inducing inputs are found approximately, {recall:.1%} of them in a sample of "
        f"{len(sample)} rows.",
        FitWarning,
        stacklevel=2,
    )
    return found.astype(np.int32)


def _widened(lists: Any, sample: np.ndarray, true: np.ndarray) -> float:
    """The recall on a sample, after as many lists are looked at as it takes."""
    lists.nprobe = 1
    while True:
        found = lists.search(sample, true.shape[1])[1]
        recall = float(np.mean([len(np.intersect1d(*pair)) / true.shape[1] for pair in zip(found, true, strict=True)]))
        if recall >= LEAST_RECALL or lists.nprobe >= lists.nlist:
            return recall
        lists.nprobe = min(2 * lists.nprobe, lists.nlist)
