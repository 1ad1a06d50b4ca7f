"""Parts of a model from their plain names."""

import functools
import operator
from typing import Any

import numpy as np
from scipy.special import logit, ndtri

from swsgp.errors import SettingError
from swsgp.gp import covariances
from swsgp.gp.active import Active, All, PerPoint, Union
from swsgp.gp.likelihoods import Bernoulli, Likelihood, Poisson, Softmax

KERNELS = {
    "matern": covariances.Matern,
    "matern12": covariances.Matern12,
    "matern32": covariances.Matern32,
    "matern52": covariances.Matern52,
    "rbf": covariances.RBF,
    "rational-quadratic": covariances.RationalQuadratic,
    "linear": covariances.Linear,
}
# Inducing points that are active together in a mini-batch of "union", as in the paper.
_N_UNION = 128


def kernel_named(kernel: Any, n_columns: int) -> covariances.Covariance:
    """A covariance from its name; its lengthscales start where random points of unit spread are about one apart."""
    if isinstance(kernel, covariances.Covariance):
        return kernel
    names = str(kernel).split("+")
    unknown = [name for name in names if name not in KERNELS]
    if unknown:
        raise SettingError(f"kernel must be a covariance or a sum of {', '.join(KERNELS)}, got {kernel!r}.")
    parts = [
        KERNELS[name](np.ones(n_columns) if name == "linear" else np.full(n_columns, np.sqrt(n_columns)))
        for name in names
    ]
    return functools.reduce(operator.add, parts)


def active_named(active: str, n_inducing: int, n_neighbors: int) -> Active:
    match active:
        case "per-point":
            return PerPoint(n_neighbors)
        case "union":
            return Union(min(n_inducing, max(_N_UNION, n_neighbors)), n_neighbors)
        case "all":
            return All()
    raise SettingError(f"active must be 'per-point', 'union' or 'all', got {active!r}.")


def starting_offset(likelihood: Likelihood, y: np.ndarray) -> np.ndarray | None:
    """Where the constant of the latent functions starts: at the mean rate, or at the shares of the classes."""
    match likelihood:
        case Poisson():
            return np.array([np.log(np.mean(y) + 1e-3)])
        case Bernoulli(link=link):
            share = (np.sum(y) + 1.0) / (len(y) + 2.0)
            return np.array([ndtri(share) if link == "probit" else logit(share)])
        case Softmax(n_classes=n_classes):
            return np.log((np.bincount(y.astype(int), minlength=n_classes) + 1.0) / (len(y) + n_classes))
    return None
