r"""Random features: $k(x, x') \approx \varphi(x)^\top \varphi(x')$, for every covariance of this package.

Each of the F features is an unbiased estimate of k by itself, so the error falls as $1/\sqrt F$. Stationary covariances
take cosines whose frequencies come from their spectral density. With weights from N(0, I) the features make functions
from the prior that can be evaluated anywhere.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import softmax

from swsgp.errors import SettingError
from swsgp.gp.covariances import (
    RBF,
    Columns,
    Constant,
    Linear,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    Product,
    RationalQuadratic,
    Sum,
)

Features = Callable[[np.ndarray], np.ndarray]
_TWICE_SMOOTHNESS = {Matern12: 1, Matern32: 3, Matern52: 5}


def random_features(covariance: Any, n_columns: int, n_features: int, rng: np.random.Generator) -> Features:
    """A map from inputs (R, D) to features (R, n_features)."""
    match covariance:
        case Sum(first=first, second=second):
            # Each feature belongs to one of the two, at random, and counts double.
            maps = [random_features(part, n_columns, n_features, rng) for part in (first, second)]
            is_first = rng.uniform(size=n_features) < 0.5
            return lambda x: np.sqrt(2.0) * np.where(is_first, maps[0](x), maps[1](x))
        case Product(first=first, second=second):
            maps = [random_features(part, n_columns, n_features, rng) for part in (first, second)]
            return lambda x: np.sqrt(n_features) * maps[0](x) * maps[1](x)
        case Columns(base=base, columns=columns):
            of_some = random_features(base, len(columns), n_features, rng)
            return lambda x: of_some(x[:, list(columns)])
        case Constant(log_variance=log_variance):
            height = np.exp(0.5 * float(log_variance)) / np.sqrt(n_features)
            return lambda x: np.full((len(x), n_features), height)
        case Linear(log_variance=log_variance):
            slopes = np.exp(0.5 * np.asarray(log_variance, dtype=np.float64))
            directions = rng.standard_normal((n_columns, n_features)) / np.sqrt(n_features)
            return lambda x: (x * slopes) @ directions
    frequencies = _frequencies(covariance, n_columns, n_features, rng)
    phases = rng.uniform(0.0, 2.0 * np.pi, n_features)
    height = np.sqrt(2.0 * np.exp(float(covariance.log_variance)) / n_features)
    return lambda x: height * np.cos(x @ frequencies + phases)


def _frequencies(covariance: Any, n_columns: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draws from the spectral density: a Gaussian, or a mixture of Gaussians over their widths."""
    match covariance:
        case RBF():
            widths = np.ones(n)
        case Matern12() | Matern32() | Matern52():
            dof = _TWICE_SMOOTHNESS[type(covariance)]
            widths = np.sqrt(dof / rng.chisquare(dof, n))
        case Matern(log_shares=log_shares):
            dofs = rng.choice([1.0, 3.0, 5.0], size=n, p=softmax(np.asarray(log_shares, dtype=np.float64)))
            widths = np.sqrt(dofs / rng.chisquare(dofs))
        case RationalQuadratic(log_alpha=log_alpha):
            alpha = np.exp(float(log_alpha))
            widths = np.sqrt(rng.gamma(alpha, 1.0 / alpha, n))
        case _:
            raise SettingError(
                f"functions cannot be drawn from {type(covariance).__name__}; use a covariance of swsgp."
            )
    lengthscale = np.broadcast_to(np.exp(np.asarray(covariance.log_lengthscale, dtype=np.float64)), (n_columns,))
    return rng.standard_normal((n_columns, n)) * widths / lengthscale[:, None]
