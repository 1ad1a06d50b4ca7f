"""Where the inducing inputs start."""

import warnings

import numpy as np
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from swsgp.errors import SettingError

# k-means beyond these sizes goes through the data in random batches.
_MAX_EXACT = 10_000_000


def starting_inputs(x: np.ndarray, n_inducing: int, placement: str | np.ndarray, seed: int) -> np.ndarray:
    """Starting inducing inputs: k-means centres of x, a random subset of its rows, or those given.

    Inputs that are given may be more than there are rows. A subset prefers rows that differ; where x has fewer
    different rows than asked for, some inputs repeat, and the jitter of the model keeps their covariance matrix
    positive definite.
    """
    if isinstance(placement, np.ndarray):
        if placement.shape != (n_inducing, x.shape[1]) or not np.isfinite(placement).all():
            raise SettingError(
                f"given inducing inputs must be finite and have shape ({n_inducing}, {x.shape[1]}), "
                f"got shape {placement.shape}."
            )
        return placement.copy()
    if not 1 <= n_inducing <= len(x):
        raise SettingError(
            f"n_inducing must be between 1 and the number of training rows, {len(x)}, got {n_inducing}; "
            "lower n_inducing or give more rows."
        )
    if placement == "subset":
        return _subset(x, n_inducing, seed)
    if placement == "kmeans":
        return _centres(x, n_inducing, seed)
    raise SettingError(f"placement must be 'kmeans', 'subset' or an array, got {str(placement)[:40]!r}.")


def _subset(x: np.ndarray, n: int, seed: int) -> np.ndarray:
    order = np.random.default_rng(seed).permutation(len(x))
    for n_looked_at in (min(len(x), 2 * n), len(x)):
        first = np.sort(np.unique(x[order[:n_looked_at]], axis=0, return_index=True)[1])
        if len(first) >= n:
            return x[order[first[:n]]]
    repeats = np.setdiff1d(np.arange(len(x)), first)
    return x[order[np.concatenate([first, repeats])[:n]]]


def _centres(x: np.ndarray, n: int, seed: int) -> np.ndarray:
    exact = len(x) * n <= _MAX_EXACT
    method = KMeans if exact else MiniBatchKMeans
    options = {"max_iter": 30} if exact else {"batch_size": 4096, "max_iter": 10}
    # One thread: several add up in an order of chance, and the same seed must give the same centres.
    with warnings.catch_warnings(), threadpool_limits(1):
        # Repeated rows give fewer different centres than asked for, which is allowed.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return method(n, n_init=1, random_state=seed, **options).fit(x).cluster_centers_.astype(x.dtype)
