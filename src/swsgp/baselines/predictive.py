r"""What a fitted baseline predicts, for any number of rows.

Every baseline has a `likelihood` and a method `latent(x)`: mean and variance of each latent function at each row,
(N, Q). Where there is no such closed form it gives S of each, (S, N, Q), a mixture with equal weights. Predictions
follow from these three: `moments(model.likelihood, *model.latent(x))`.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from swsgp.arrays import to_power_of_two
from swsgp.errors import SettingError
from swsgp.gp.likelihoods import Classification, Likelihood, Regression
from swsgp.ops.compiled import jit
from swsgp.shapes import Array, Float, Scalar, precision_scope

# Halvings of the interval that a quantile of a mixture is known to lie in: down to rounding.
_HALVINGS = 60


# Moments of the latent functions at each row: one pair, or one for each component of a mixture.
Latent = Float[np.ndarray, "N Q"] | Float[np.ndarray, "S N Q"]
# Rows that are predicted at once.
_CHUNK_ROWS = 4096
# The ends of a 95% interval.
_ENDS = np.array([0.025, 0.975])


@runtime_checkable
class Baseline(Protocol):
    """A fitted baseline."""

    @property
    def likelihood(self) -> Likelihood: ...

    def latent(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent functions at each row."""


@runtime_checkable
class BaselineWithSensitivity(Baseline, Protocol):
    """A fitted baseline that can say which columns matter."""

    def sensitivity(self) -> np.ndarray:
        """How fast the function varies along each column."""


class BaselinePredictor:
    """A fitted baseline with the methods of `swsgp.Predictor`."""

    def __init__(self, model: Baseline):
        self.model = model

    def moments(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = self._over_chunks(moments, x)
        return mean, variance

    @property
    def noise(self) -> float:
        """Variance of a new observation where the latent function is known to be 0."""
        return float(moments(self.model.likelihood, np.zeros((1, 1)), np.zeros((1, 1)))[1][0])

    def quantiles(self, x: np.ndarray, levels: np.ndarray) -> np.ndarray:
        return self._over_chunks(lambda of, mean, variance: (quantiles(of, mean, variance, levels),), x)[0]

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        return self._over_chunks(lambda *latent: (probabilities(*latent),), x)[0]

    def log_density(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self._over_chunks(lambda *known: (log_density(*known),), x, y)[0]

    def assess_numbers(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
        """Mean, variance, ends of 95% intervals, position from 0 to 1, and log density of observations."""
        return self._over_chunks(_assess_numbers, x, y)

    def assess_classes(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
        """Class probabilities, and the log-probability of the true class."""
        return self._over_chunks(lambda *known: (probabilities(*known[:3]), log_density(*known)), x, y)

    def joint(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean (len(x), 1) and covariance (1, len(x), len(x)) of f over all points together."""
        joint = getattr(self.model, "joint", None)
        if joint is None:
            raise SettingError(f"{type(self.model).__name__} has no joint covariance; a full GP has one.")
        mean, cov = joint(x)
        return np.asarray(mean), np.asarray(cov)

    def _over_chunks(
        self, finish: Callable[..., tuple[np.ndarray, ...]], x: np.ndarray, y: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        """What `finish` makes of the latent functions, and of y; chunks have a power of two of rows."""
        parts = []
        for start in range(0, len(x), _CHUNK_ROWS):
            rows = slice(start, start + _CHUNK_ROWS)
            own = () if y is None else (to_power_of_two(y[rows]),)
            results = finish(self.model.likelihood, *self.model.latent(to_power_of_two(x[rows])), *own)
            parts.append([result[: len(x[rows])] for result in results])
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _assess_numbers(likelihood: Likelihood, mean: Latent, variance: Latent, y: np.ndarray) -> tuple[np.ndarray, ...]:
    latent = mean, variance
    lower, upper = quantiles(likelihood, *latent, _ENDS).T
    with precision_scope("float64"):
        position = np.asarray(_position(likelihood, *_components(*latent), y.astype(np.float64)))
    return *moments(likelihood, *latent), lower, upper, position, log_density(likelihood, *latent, y)


def moments(likelihood: Likelihood, mean: Latent, variance: Latent) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of a new observation at each row."""
    _check_regression(likelihood)
    with precision_scope("float64"):
        new_mean, new_variance = _moments(likelihood, *_components(mean, variance))
        return np.asarray(new_mean), np.asarray(new_variance)


def quantiles(likelihood: Likelihood, mean: Latent, variance: Latent, levels: np.ndarray) -> np.ndarray:
    """Quantiles of a new observation at each row, (N, len(levels)), for levels between 0 and 1."""
    _check_regression(likelihood)
    components = _components(mean, variance)
    with precision_scope("float64"):
        return np.stack([np.asarray(_quantile(likelihood, *components, np.float64(p))) for p in levels], axis=1)


def probabilities(likelihood: Likelihood, mean: Latent, variance: Latent) -> np.ndarray:
    """Probability of each class at each row, (N, C)."""
    if not isinstance(likelihood, Classification):
        raise SettingError(f"{type(likelihood).__name__} predicts numbers; ask for moments.")
    with precision_scope("float64"):
        return np.asarray(_probabilities(likelihood, *_components(mean, variance)))


def log_density(likelihood: Likelihood, mean: Latent, variance: Latent, y: np.ndarray) -> np.ndarray:
    """Log predictive density of each observation, or log-probability of each class."""
    likelihood.check(y)
    with precision_scope("float64"):
        return np.asarray(_log_density(likelihood, *_components(mean, variance), y.astype(np.float64)))


def in_chunks(
    compute: Callable[[np.ndarray], tuple[Array, Array]], x: np.ndarray, n_rows: int, axis: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The two results of `compute` for all rows of x, at most `n_rows` at a time, joined along `axis`.

    Chunks are padded to a power of two of rows, so that few programs are compiled.
    """
    parts: list[tuple[np.ndarray, ...]] = []
    for start in range(0, len(x), n_rows):
        chunk = x[start : start + n_rows]
        results = compute(to_power_of_two(chunk))
        parts.append(tuple(np.asarray(result).take(np.arange(len(chunk)), axis) for result in results))
    first, second = (np.concatenate(results, axis) for results in zip(*parts, strict=True))
    return first, second


# ---------------------------------------------------------------------------------------------------------


def _check_regression(likelihood: Likelihood) -> None:
    if not isinstance(likelihood, Regression):
        raise SettingError(f"{type(likelihood).__name__} predicts classes; ask for probabilities.")


def _components(mean: Latent, variance: Latent) -> tuple[np.ndarray, ...]:
    """Latent moments with an axis of components, (S, N, Q), in float64."""
    return tuple(np.asarray(part if part.ndim == 3 else part[None], np.float64) for part in (mean, variance))


@jit
def _moments(
    likelihood: Regression, mean: Float[Array, "S N Q"], variance: Float[Array, "S N Q"]
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    means, variances = jax.vmap(jax.vmap(likelihood.moments))(mean, variance)
    return jnp.mean(means, axis=0), jnp.mean(variances, axis=0) + jnp.var(means, axis=0)


@jit
def _quantile(
    likelihood: Regression, mean: Float[Array, "S N Q"], variance: Float[Array, "S N Q"], level: Scalar
) -> Float[Array, " N"]:
    """The quantile of a mixture lies between those of its components, and is found there by halving."""
    own = jax.vmap(jax.vmap(lambda m, v: likelihood.quantile(level, m, v)))(mean, variance)
    if len(mean) == 1:
        return own[0]

    def halved(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        cdf = jax.vmap(jax.vmap(likelihood.cdf), in_axes=(None, 0, 0))(middle, mean, variance)
        is_low = jnp.mean(cdf, axis=0) < level
        return jnp.where(is_low, middle, low), jnp.where(is_low, high, middle)

    return jax.lax.fori_loop(0, _HALVINGS, halved, (jnp.min(own, axis=0), jnp.max(own, axis=0)))[1]


@jit
def _position(
    likelihood: Regression, mean: Float[Array, "S N Q"], variance: Float[Array, "S N Q"], y: Float[Array, " N"]
) -> Float[Array, " N"]:
    return jnp.mean(jax.vmap(jax.vmap(likelihood.position), in_axes=(None, 0, 0))(y, mean, variance), axis=0)


@jit
def _probabilities(
    likelihood: Classification, mean: Float[Array, "S N Q"], variance: Float[Array, "S N Q"]
) -> Float[Array, "N C"]:
    # One component after the other: each may take many draws of its own.
    return jnp.mean(jax.lax.map(lambda part: jax.vmap(likelihood.probabilities)(*part), (mean, variance)), axis=0)


@jit
def _log_density(
    likelihood: Likelihood, mean: Float[Array, "S N Q"], variance: Float[Array, "S N Q"], y: Float[Array, " N"]
) -> Float[Array, " N"]:
    own = jax.lax.map(lambda part: jax.vmap(likelihood.log_predictive)(y, *part), (mean, variance))
    return jax.nn.logsumexp(own, axis=0) - jnp.log(len(mean))
