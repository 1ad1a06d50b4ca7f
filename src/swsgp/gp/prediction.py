"""Predictions of a model for any number of points, in chunks of bounded memory.

Inputs and results are NumPy arrays in the units that the model was trained in.
"""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from swsgp.arrays import inputs_for, pair_for
from swsgp.errors import NumericalError, SettingError
from swsgp.gp.active import All, PerPoint, SearchInducing, Union
from swsgp.gp.likelihoods import Classification, Likelihood, Regression
from swsgp.gp.model import SparseGP
from swsgp.gp.variational import Full
from swsgp.ops.compiled import jit
from swsgp.ops.local import inverse_factor, joint_covariance
from swsgp.shapes import Array, precision_scope

# Numbers held at once for one chunk in its largest array: 64 MB in float32.
_MAX_NUMBERS = 1 << 24
_MAX_ROWS = 8192
# A union is made of this many points at a time where only marginals are asked for.
_UNION_ROWS = 64
# Where a factor fails, prediction tries again with ten times the jitter, at most this often.
_MAX_RETRIES = 4


class Predictor:
    """A trained model, ready to predict.

    For `All`, the one factor that every point shares is computed here, once.
    """

    def __init__(self, model: SparseGP):
        self.model = model
        self._factor: Any = None
        if isinstance(model.active_prediction, All):
            with precision_scope(model.precision):
                self._factor = jnp.asarray(self._retried(lambda model: (_factor(model),))[0])
        self._z = np.asarray(model.inducing)
        with precision_scope(model.precision):
            self._search = SearchInducing(model.metric, self._z)

    def latent(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of q(f), each (len(x), Q)."""
        with precision_scope(self.model.precision):
            mean, variance = self._over_chunks(lambda mean, variance: (mean, variance), x)
            return mean, variance

    def moments(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of a new observation at each point."""
        likelihood = self.model.likelihood
        if not isinstance(likelihood, Regression):
            raise SettingError(f"{type(likelihood).__name__} predicts classes; ask for probabilities.")
        with precision_scope(self.model.precision):
            mean, variance = self._over_chunks(lambda mean, variance: _moments(likelihood, mean, variance), x)
            return mean, variance

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Probability of each class at each point, (len(x), C)."""
        likelihood = self.model.likelihood
        if not isinstance(likelihood, Classification):
            raise SettingError(f"{type(likelihood).__name__} predicts numbers; ask for moments.")
        with precision_scope(self.model.precision):
            return self._over_chunks(lambda mean, variance: (_probabilities(likelihood, mean, variance),), x)[0]

    def log_density(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Log predictive density of each observation."""
        likelihood = self.model.likelihood
        with precision_scope(self.model.precision):
            x, y = pair_for(x, y, self._z.shape[1], self.model.precision)
            likelihood.check(y)
            return self._over_chunks(
                lambda mean, variance, seen: (_log_predictive(likelihood, mean, variance, seen),), x, y
            )[0]

    def joint(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean (len(x), Q) and covariance (Q, len(x), len(x)) of q(f) over all points together."""
        active = self.model.active_prediction
        if isinstance(active, PerPoint):
            raise SettingError(
                "points with active sets of their own have no joint covariance; predict with Union or All active."
            )
        with precision_scope(self.model.precision):
            x = inputs_for(x, self._z.shape[1], self.model.precision)
            if isinstance(active, All):
                index, present = jnp.arange(len(self._z)), jnp.ones(len(self._z), dtype=bool)
            else:
                index, present = self._union(x, active.n_neighbors)
            mean, cov = self._retried(lambda model: _joint(model, self._factor, jnp.asarray(x), index, present))
            return mean, cov

    # ---------------------------------------------------------------------------------------------------------

    def _over_chunks(self, finish: Callable[..., tuple[Array, ...]], *columns: np.ndarray) -> tuple[np.ndarray, ...]:
        """`finish` applied to the latent moments, and to the columns after the inputs, of every chunk."""
        inputs = inputs_for(columns[0], self._z.shape[1], self.model.precision)
        parts = []
        for n_rows, (x, *others) in self._chunks(inputs, *columns[1:]):
            mean, variance = self._chunk_latent(x)
            parts.append([np.asarray(array)[:n_rows] for array in finish(mean, variance, *others)])
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))

    def _chunks(self, *columns: np.ndarray) -> Iterator[tuple[int, tuple[np.ndarray, ...]]]:
        """Chunks of rows with the number of real ones; the rest repeat the last, up to a power of two."""
        match self.model.active_prediction:
            case PerPoint(n_neighbors):
                n_latent = self.model.likelihood.n_latent
                rows_of_l = n_latent * len(self._z) if isinstance(self.model.variational, Full) else 0
                most = _MAX_NUMBERS // (n_neighbors * max(n_neighbors, self._z.shape[1], rows_of_l))
            case Union():
                most = _UNION_ROWS
            case All():
                most = _MAX_NUMBERS // len(self._z)
        most = 1 << (min(max(most, 1), _MAX_ROWS).bit_length() - 1)
        for start in range(0, len(columns[0]), most):
            chunk = [column[start : start + most] for column in columns]
            n_rows = len(chunk[0])
            size = 1 << (n_rows - 1).bit_length()
            yield n_rows, tuple(np.concatenate([column, column[-1:].repeat(size - n_rows, 0)]) for column in chunk)

    def _chunk_latent(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        points = jnp.asarray(x)
        match self.model.active_prediction:
            case PerPoint(n_neighbors):
                index = jnp.asarray(self._search(x, n_neighbors))
                return self._retried(lambda model: _latent_per_point(model, points, index))
            case Union(n_neighbors=n_neighbors):
                index, present = self._union(x, n_neighbors)
                return self._retried(lambda model: _latent_union(model, points, index, present))
            case All():
                return self._retried(lambda model: _latent_all(model, self._factor, points))

    def _union(self, x: np.ndarray, n_neighbors: int) -> tuple[Array, Array]:
        """The union of the points' nearest, padded to a power of two, and which of it is really there."""
        index = np.unique(self._search(x, n_neighbors))
        size = 1 << (len(index) - 1).bit_length()
        present = np.arange(size) < len(index)
        return jnp.asarray(np.pad(index, (0, size - len(index)))), jnp.asarray(present)

    def _retried(self, compute: Callable[[SparseGP], tuple[Array, ...]]) -> tuple[np.ndarray, ...]:
        """The results for the model as it is; entries that are not finite, with more and more jitter."""
        results = tuple(np.array(part) for part in compute(self.model))
        model = self.model
        for retries_left in reversed(range(_MAX_RETRIES + 1)):
            if all(np.isfinite(part).all() for part in results):
                return results
            if retries_left:
                model = eqx.tree_at(lambda m: m.jitter, model, 10.0 * model.jitter)
                for old, new in zip(results, compute(model), strict=True):
                    np.copyto(old, new, where=~np.isfinite(old))
        raise NumericalError(
            f"a prediction is not finite even with jitter {float(model.jitter):.1e}; "
            "check the inputs for extreme values, or use precision='float64'."
        )


# ------------------------------------------------------------------------------------------------- compiled parts


@jit
def _factor(model: SparseGP) -> Array:
    return inverse_factor(model.k_zz(jnp.arange(len(model.inducing))))


@jit
def _latent_per_point(model: SparseGP, x: Array, index: Array) -> tuple[Array, Array]:
    def one(point: Array, own: Array) -> tuple[Array, Array]:
        return _conditional(model, inverse_factor(model.k_zz(own)), point[None], own)

    mean, variance = jax.vmap(one)(x, index)
    return mean[:, 0], variance[:, 0]


@jit
def _latent_all(model: SparseGP, factor: Array, x: Array) -> tuple[Array, Array]:
    return _conditional(model, factor, x, jnp.arange(len(model.inducing)))


@jit
def _latent_union(model: SparseGP, x: Array, index: Array, present: Array) -> tuple[Array, Array]:
    return _conditional(model, _masked_factor(model, index, present), x, index, present)


@jit
def _joint(model: SparseGP, factor: Array | None, x: Array, index: Array, present: Array) -> tuple[Array, Array]:
    w = _masked_factor(model, index, present) if factor is None else factor
    k_zx = jnp.where(present[:, None], model.covariance.matrix(model.inducing[index], x), 0.0)
    mean, _ = model.variational.marginals(index, w, k_zx, model.covariance.diagonal(x))
    k_xx = model.covariance.matrix(x, x)
    return mean, joint_covariance(w, k_zx, k_xx, model.variational.covariance(index))


def _conditional(
    model: SparseGP, w: Array, x: Array, index: Array, present: Array | None = None
) -> tuple[Array, Array]:
    k_zx = model.covariance.matrix(model.inducing[index], x)
    if present is not None:
        k_zx = jnp.where(present[:, None], k_zx, 0.0)
    return model.variational.marginals(index, w, k_zx, model.covariance.diagonal(x))


def _masked_factor(model: SparseGP, index: Array, present: Array) -> Array:
    """The factor of a padded set: padding is independent of everything, so it has no weight in a prediction."""
    both = present[:, None] & present[None, :]
    return inverse_factor(jnp.where(both, model.k_zz(index), jnp.eye(len(index), dtype=model.inducing.dtype)))


@jit
def _moments(likelihood: Regression, mean: Array, variance: Array) -> tuple[Array, Array]:
    return jax.vmap(likelihood.moments)(mean, variance)


@jit
def _probabilities(likelihood: Classification, mean: Array, variance: Array) -> Array:
    return jax.vmap(likelihood.probabilities)(mean, variance)


@jit
def _log_predictive(likelihood: Likelihood, mean: Array, variance: Array, y: Array) -> Array:
    return jax.vmap(likelihood.log_predictive)(y, mean, variance)
