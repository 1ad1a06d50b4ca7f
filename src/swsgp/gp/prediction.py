"""Predictions of a model for any number of points, in chunks of bounded memory.

Inputs and results are NumPy arrays in the units that the model was trained in.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from swsgp.arrays import inputs_for, pair_for, to_power_of_two
from swsgp.errors import NumericalError, SettingError
from swsgp.gp.active import All, PerPoint, SearchInducing, Union
from swsgp.gp.likelihoods import Classification, Likelihood, Regression
from swsgp.gp.model import SparseGP, per_inducing, prepared
from swsgp.gp.variational import Diagonal, Full
from swsgp.ops.compiled import Structure, jit
from swsgp.ops.local import inverse_factor, joint_covariance
from swsgp.shapes import Array, precision_scope

# Numbers held at once for one chunk in its largest array: 64 MB in float32.
_MAX_NUMBERS = 1 << 24
_MAX_ROWS = 8192
# Likelihood, latent mean and variance of one point, and columns of its own, to results.
Finish = Callable[..., tuple[Array, ...]]
# A union is made of this many points at a time where only marginals are asked for.
_UNION_ROWS = 64
# Points of a joint covariance, whose matrices are dense.
_MAX_JOINT = 8192
# Active inducing variables of a few rows, all together, at most.
_FEW = 256
# Where a factor fails, prediction tries again with ten times the jitter, at most this often.
_MAX_RETRIES = 4


class Predictor:
    """A trained model, ready to predict.

    For `All`, the one factor that every point shares is computed here, once.
    """

    def __init__(self, model: SparseGP):
        self._z = np.asarray(model.inducing)
        self.model = model = prepared(model)
        self._precision, self._active = model.precision, model.active_prediction
        self._factor: Any = None
        if isinstance(self._active, All):
            with precision_scope(self._precision):
                self._factor = jnp.asarray(self._retried(_factor)[0])
        self._arrays, definition = jax.tree.flatten(model)
        self._structure = Structure(definition)
        self._chunk_rows = self._most_rows()
        # Arrays with a row for each inducing variable, by their position among all, on the host.
        self._per_inducing: dict[int, np.ndarray] = {}
        if isinstance(model.variational, Diagonal) and jax.default_backend() == "cpu":
            own = {id(array) for array in per_inducing(model)}
            self._per_inducing = {i: np.asarray(a) for i, a in enumerate(self._arrays) if id(a) in own}
        with precision_scope(self._precision):
            self._search = SearchInducing(model.metric, self._z)

    def latent(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of q(f), each (len(x), Q)."""
        mean, variance = self._over_chunks(_latent, x)
        return mean, variance

    def moments(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of a new observation at each point."""
        self._check_regression()
        mean, variance = self._over_chunks(_moments, x)
        return mean, variance

    @property
    def noise(self) -> float:
        """Variance of a new observation where the latent function is known to be 0."""
        likelihood = self._check_regression()
        with precision_scope(self._precision):
            return float(likelihood.moments(jnp.zeros(1), jnp.zeros(1))[1])

    def quantiles(self, x: np.ndarray, levels: np.ndarray) -> np.ndarray:
        """Quantiles of a new observation at each point, (len(x), len(levels)), for levels between 0 and 1."""
        self._check_regression()
        columns = [self._over_chunks(_quantile, x, np.full(len(x), level))[0] for level in levels]
        return np.stack(columns, axis=1)

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Probability of each class at each point, (len(x), C)."""
        likelihood = self.model.likelihood
        if not isinstance(likelihood, Classification):
            raise SettingError(f"{type(likelihood).__name__} predicts numbers; ask for moments.")
        return self._over_chunks(_probabilities, x)[0]

    def log_density(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Log predictive density of each observation."""
        return self._of_observations(_log_density, x, y)[0]

    def assess_numbers(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
        """All about observations at once: mean, variance, ends of 95% intervals, position, log density.

        The position is where each observation lies in its predictive distribution, from 0 to 1.
        """
        self._check_regression()
        return self._of_observations(_assess_numbers, x, y)

    def assess_classes(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
        """All about classes at once: their probabilities, and the log-probability of the true one."""
        return self._of_observations(_assess_classes, x, y)

    def joint(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean (len(x), Q) and covariance (Q, len(x), len(x)) of q(f) over all points together.

        Its diagonal is the variance of each point by itself, to rounding. For `PerPoint` the points are joined by the
        process $f(x) = a(x)^\top u + r(x)$: u from q(u), and r what the prior leaves open given each point's own set.
        For `Union` mean and covariance are those of the union of the points' sets, and depend on it.
        """
        x = inputs_for(x, self._z.shape[1], self._precision)
        if len(x) > _MAX_JOINT:
            raise SettingError(f"a joint covariance takes at most {_MAX_JOINT} points, got {len(x)}; ask in parts.")
        padded = to_power_of_two(x)
        with precision_scope(self._precision):
            match self._active:
                case All():
                    index, present = np.arange(len(self._z)), np.ones(len(self._z), dtype=bool)
                case PerPoint(n_neighbors):
                    own = self._search(padded, n_neighbors)
                    index, present = _union(own)
                case Union(n_neighbors=n_neighbors):
                    index, present = _union(self._search(x, n_neighbors))
            if len(index) > 2 * _MAX_JOINT:
                raise SettingError(f"these points have {len(index)} active inducing points together; ask for fewer.")
            if isinstance(self._active, PerPoint):
                place = np.searchsorted(index[present], own)
                mean, cov = self._retried(lambda model: _joint_per_point(model, padded, own, index, place))
            else:
                mean, cov = self._retried(lambda model: _joint(model, self._factor, padded, index, present))
        return mean[: len(x)], cov[:, : len(x), : len(x)]

    # ---------------------------------------------------------------------------------------------------------

    def _check_regression(self) -> Regression:
        likelihood = self.model.likelihood
        if not isinstance(likelihood, Regression):
            raise SettingError(f"{type(likelihood).__name__} predicts classes; ask for probabilities.")
        return likelihood

    def _of_observations(self, finish: Finish, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
        x, y = pair_for(x, y, self._z.shape[1], self._precision)
        self.model.likelihood.check(y)
        return self._over_chunks(finish, x, y)

    def _over_chunks(self, finish: Finish, x: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
        """What `finish` makes of the latent moments, and of the columns beside the inputs, for all rows."""
        x = inputs_for(x, self._z.shape[1], self._precision)
        others = tuple(column.astype(self._precision) for column in others)
        with precision_scope(self._precision):
            parts = [
                [array[:n_rows] for array in self._chunk(finish, *chunk)] for n_rows, chunk in self._chunks(x, *others)
            ]
        if len(parts) == 1:
            return tuple(parts[0])
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))

    def _most_rows(self) -> int:
        """Rows that are predicted at once."""
        match self._active:
            case PerPoint(n_neighbors):
                n_latent = self.model.likelihood.n_latent
                rows_of_l = n_latent * len(self._z) if isinstance(self.model.variational, Full) else 0
                n_landmarks = 0 if self.model.landmarks is None else len(self.model.landmarks.inputs)
                most = _MAX_NUMBERS // (n_neighbors * max(n_neighbors, self._z.shape[1], rows_of_l, n_landmarks))
            case Union():
                most = _UNION_ROWS
            case All():
                most = _MAX_NUMBERS // len(self._z)
        return 1 << (min(max(most, 1), _MAX_ROWS).bit_length() - 1)

    def _chunks(self, *columns: np.ndarray) -> Iterator[tuple[int, tuple[np.ndarray, ...]]]:
        """Chunks of rows with the number of real ones; the rest repeat the last, up to a power of two."""
        most = self._chunk_rows
        for start in range(0, len(columns[0]), most):
            chunk = [column[start : start + most] for column in columns]
            yield len(chunk[0]), tuple(to_power_of_two(column) for column in chunk)

    def _chunk(self, finish: Finish, x: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
        match self._active:
            case PerPoint(n_neighbors):
                own = self._search(x, n_neighbors)

                def compute(model: SparseGP) -> tuple[Array, tuple[Array, ...]]:
                    arrays = self._arrays if model is self.model else jax.tree.leaves(model)
                    arrays, index = self._few(arrays, own)
                    return _per_point(arrays, x, index, others, structure=self._structure, finish=finish)

                return self._retried(compute)
            case Union(n_neighbors=n_neighbors):
                index, present = _union(self._search(x, n_neighbors))
                return self._retried(lambda model: _with_union(model, x, index, present, others, finish=finish))
            case All():
                return self._retried(lambda model: _with_all(model, self._factor, x, others, finish=finish))

    def _few(self, arrays: list[Any], own: np.ndarray) -> tuple[list[Any], np.ndarray]:
        """The model's arrays with the inducing variables of a few rows alone, and where they are then.

        A program with large arguments is handed to another thread, which takes longer than the prediction of a row.
        """
        if own.size > _FEW or not self._per_inducing:
            return arrays, own
        chosen = own.ravel()
        arrays = list(arrays)
        for position, values in self._per_inducing.items():
            arrays[position] = values[chosen]
        return arrays, np.arange(own.size, dtype=np.int32).reshape(own.shape)

    def _retried(self, compute: Callable[[SparseGP], tuple[Array, tuple[Array, ...]]]) -> tuple[np.ndarray, ...]:
        """The results for the model as it is; those that came from no finite number, with more and more jitter.

        `compute` says which entries along the first axis are sound, or all together, and gives the results.
        """
        sound, results = _on_host(compute(self.model))
        if sound.all():
            return results
        model = self.model
        kept = [result.copy() for result in results]
        for _ in range(_MAX_RETRIES):
            model = eqx.tree_at(lambda m: m.jitter, model, 10.0 * model.jitter)
            now_sound, results = _on_host(compute(model))
            for old, new in zip(kept, results, strict=True):
                old[~sound] = new[~sound]
            sound = sound | now_sound
            if sound.all():
                return tuple(kept)
        raise NumericalError(
            f"a prediction is not finite even with jitter {float(model.jitter):.1e}; "
            "check the inputs for extreme values, or use precision='float64'."
        )


def _union(own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The union of the points' active sets, sorted, padded to a power of two, and which of it is really there."""
    index = np.unique(own)
    size = 1 << (len(index) - 1).bit_length()
    present = np.arange(size) < len(index)
    return np.pad(index, (0, size - len(index))), present


def _on_host(outcome: tuple[Array, tuple[Array, ...]]) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    sound, results = outcome
    return np.asarray(sound), tuple(np.asarray(result) for result in results)


# ------------------------------------------------------------------------------------------------- compiled parts
# Each takes latent moments to what was asked for, for one point.


def _latent(likelihood: Likelihood, mean: Array, variance: Array) -> tuple[Array, ...]:
    return mean, variance


def _moments(likelihood: Regression, mean: Array, variance: Array) -> tuple[Array, ...]:
    return likelihood.moments(mean, variance)


def _quantile(likelihood: Regression, mean: Array, variance: Array, level: Array) -> tuple[Array, ...]:
    return (likelihood.quantile(level, mean, variance),)


def _probabilities(likelihood: Classification, mean: Array, variance: Array) -> tuple[Array, ...]:
    return (likelihood.probabilities(mean, variance),)


def _log_density(likelihood: Likelihood, mean: Array, variance: Array, y: Array) -> tuple[Array, ...]:
    return (likelihood.log_predictive(y, mean, variance),)


def _assess_numbers(likelihood: Regression, mean: Array, variance: Array, y: Array) -> tuple[Array, ...]:
    ends = (likelihood.quantile(jnp.asarray(level, mean.dtype), mean, variance) for level in (0.025, 0.975))
    position = likelihood.position(y, mean, variance)
    return *likelihood.moments(mean, variance), *ends, position, likelihood.log_predictive(y, mean, variance)


def _assess_classes(likelihood: Classification, mean: Array, variance: Array, y: Array) -> tuple[Array, ...]:
    return likelihood.probabilities(mean, variance), likelihood.log_predictive(y, mean, variance)


# ----------------------------------------------------------------------------------------- one program for a chunk


@partial(jit, constant=("structure", "finish"))
def _per_point(
    arrays: list[Array], x: Array, index: Array, others: tuple[Array, ...], structure: Structure, finish: Finish
) -> tuple[Array, tuple[Array, ...]]:
    model: SparseGP = structure.together(arrays)
    seen = model.seen_from(x)

    def one(point: Array, own: Array, seen: Array) -> tuple[Array, Array]:
        k_zx, k_xx = model.k_zx(own, point[None], seen[None]), model.k_xx(point[None], seen[None])
        return model.variational.marginals(own, inverse_factor(model.k_zz(own)), k_zx, k_xx)

    mean, variance = jax.vmap(one)(x, index, seen)
    return _finished(model, *model.whole(mean[:, 0], variance[:, 0], seen), others, finish)


@partial(jit, constant="finish")
def _with_all(
    model: SparseGP, factor: Array, x: Array, others: tuple[Array, ...], finish: Finish
) -> tuple[Array, tuple[Array, ...]]:
    mean, variance = _conditional(model, factor, x, jnp.arange(len(model.inducing)))
    return _finished(model, mean, variance, others, finish)


@partial(jit, constant="finish")
def _with_union(
    model: SparseGP, x: Array, index: Array, present: Array, others: tuple[Array, ...], finish: Finish
) -> tuple[Array, tuple[Array, ...]]:
    mean, variance = _conditional(model, _masked_factor(model, index, present), x, index, present)
    return _finished(model, mean, variance, others, finish)


def _finished(
    model: SparseGP, mean: Array, variance: Array, others: tuple[Array, ...], finish: Finish
) -> tuple[Array, tuple[Array, ...]]:
    """Which rows are sound, and the results."""
    sound = jnp.isfinite(mean).all(axis=1) & jnp.isfinite(variance).all(axis=1)
    return sound, jax.vmap(lambda *row: finish(model.likelihood, *row))(mean, variance, *others)


@jit
def _factor(model: SparseGP) -> tuple[Array, tuple[Array, ...]]:
    factor = inverse_factor(model.k_zz(jnp.arange(len(model.inducing))))
    return jnp.isfinite(factor).all(), (factor,)


@jit
def _joint(
    model: SparseGP, factor: Array | None, x: Array, index: Array, present: Array
) -> tuple[Array, tuple[Array, ...]]:
    w = _masked_factor(model, index, present) if factor is None else factor
    k_zx = jnp.where(present[:, None], model.covariance.matrix(model.inducing[index], x), 0.0)
    mean, _ = model.variational.marginals(index, w, k_zx, model.covariance.diagonal(x))
    k_xx = model.covariance.matrix(x, x)
    cov = joint_covariance(w, k_zx, k_xx, model.variational.covariance(index))
    return jnp.isfinite(mean).all() & jnp.isfinite(cov).all(), (model.around_offset(mean), cov)


@jit
def _joint_per_point(
    model: SparseGP, x: Array, own: Array, index: Array, place: Array
) -> tuple[Array, tuple[Array, ...]]:
    """`own` are the points' active sets, `index` their union, and `place` where in it each of `own` is."""
    seen = model.seen_from(x)
    rows = jnp.arange(len(x))[:, None]
    a = jnp.zeros((len(x), len(index)), x.dtype).at[rows, place].add(model.own_weights(x, own, seen))
    k_xz, k_xx = model.k_zx(index, x, seen).T, model.covariance.matrix(x, x) - seen @ seen.T
    cross = k_xz @ a.T
    inner = model.k_zz(index) + model.variational.covariance(index)
    cov = k_xx - cross - cross.T + a @ inner @ a.T
    cov = 0.5 * (cov + jnp.swapaxes(cov, -1, -2))
    mean, _ = model.whole(a @ model.variational.mean[index], jnp.zeros((len(x), len(cov)), x.dtype), seen)
    if model.landmarks is not None:
        cov = cov + model.landmarks.covariance(seen)
    return jnp.isfinite(mean).all() & jnp.isfinite(cov).all(), (mean, cov)


def _conditional(
    model: SparseGP, w: Array, x: Array, index: Array, present: Array | None = None
) -> tuple[Array, Array]:
    k_zx = model.covariance.matrix(model.inducing[index], x)
    if present is not None:
        k_zx = jnp.where(present[:, None], k_zx, 0.0)
    mean, variance = model.variational.marginals(index, w, k_zx, model.covariance.diagonal(x))
    return model.around_offset(mean), variance


def _masked_factor(model: SparseGP, index: Array, present: Array) -> Array:
    """The factor of a padded set: padding is independent of everything, so it has no weight in a prediction."""
    both = present[:, None] & present[None, :]
    return inverse_factor(jnp.where(both, model.k_zz(index), jnp.eye(len(index), dtype=model.inducing.dtype)))
