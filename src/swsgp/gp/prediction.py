"""Predictions of a model for any number of points, in chunks of bounded memory.

Inputs and results are NumPy arrays in the units that the model was trained in.
"""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from swsgp.arrays import inputs_for, pair_for, to_power_of_two
from swsgp.errors import NumericalError, SettingError
from swsgp.gp import programs
from swsgp.gp.active import All, PerPoint, SearchInducing, Union
from swsgp.gp.few import FewPoints
from swsgp.gp.likelihoods import Classification, Gaussian, Regression
from swsgp.gp.model import SparseGP, per_inducing, prepared
from swsgp.gp.variational import Diagonal, Full
from swsgp.ops.compiled import Structure
from swsgp.shapes import Array, precision_scope

# Numbers held at once for one chunk in its largest array: 64 MB in float32.
_MAX_NUMBERS = 1 << 24
_MAX_ROWS = 8192
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

    For `All`, the one factor that every point shares is computed here, once. Neighbours may be searched for in less
    precision than the model has now, if it was trained in less.
    """

    def __init__(self, model: SparseGP, search_precision: str | None = None):
        self._z = np.asarray(model.inducing)
        self.model = model = prepared(model)
        self._precision, self._active = model.precision, model.active_prediction
        self._factor: Any = None
        if isinstance(self._active, All):
            with precision_scope(self._precision):
                self._factor = jnp.asarray(self._retried(programs.factor)[0])
        self._arrays, definition = jax.tree.flatten(model)
        self._structure = Structure(definition)
        self._chunk_rows = self._most_rows()
        # Arrays with a row for each inducing variable, by their position among all, on the host.
        self._per_inducing: dict[int, np.ndarray] = {}
        if isinstance(model.variational, Diagonal) and jax.default_backend() == "cpu":
            own = {id(array) for array in per_inducing(model)}
            self._per_inducing = {i: np.asarray(a) for i, a in enumerate(self._arrays) if id(a) in own}
        with precision_scope(self._precision):
            self._few_points = FewPoints.of(model)
            self._search = SearchInducing(model.metric, self._z.astype(search_precision or self._precision))
        arrays, definition = jax.tree.flatten(model.likelihood)
        self._likelihood = [np.asarray(array) for array in arrays], Structure(definition)
        # What a Gaussian likelihood adds to the variance, which needs no program.
        self._noise = np.asarray(self.noise, self._precision) if isinstance(model.likelihood, Gaussian) else None

    def latent(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of q(f), each (len(x), Q)."""
        mean, variance = self._over_chunks(programs.latent, x)
        return mean, variance

    def moments(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of a new observation at each point."""
        self._check_regression()
        mean, variance = self._over_chunks(programs.moments, x)
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
        columns = [self._over_chunks(programs.quantile, x, np.full(len(x), level))[0] for level in levels]
        return np.stack(columns, axis=1)

    def moments_and_interval(self, x: np.ndarray, low: float, high: float) -> tuple[np.ndarray, ...]:
        """Mean and variance of a new observation at each point, and two of its quantiles, in one go."""
        self._check_regression()
        return self._over_chunks(programs.moments_and_interval, x, np.full(len(x), low), np.full(len(x), high))

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Probability of each class at each point, (len(x), C)."""
        likelihood = self.model.likelihood
        if not isinstance(likelihood, Classification):
            raise SettingError(f"{type(likelihood).__name__} predicts numbers; ask for moments.")
        return self._over_chunks(programs.probabilities, x)[0]

    def log_density(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Log predictive density of each observation."""
        return self._of_observations(programs.log_density, x, y)[0]

    def assess_numbers(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
        """All about observations at once: mean, variance, ends of 95% intervals, position, log density.

        The position is where each observation lies in its predictive distribution, from 0 to 1.
        """
        self._check_regression()
        return self._of_observations(programs.assess_numbers, x, y)

    def assess_classes(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
        """All about classes at once: their probabilities, and the log-probability of the true one."""
        return self._of_observations(programs.assess_classes, x, y)

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
                mean, cov = self._retried(lambda model: programs.joint_per_point(model, padded, own, index, place))
            else:
                mean, cov = self._retried(lambda model: programs.joint(model, self._factor, padded, index, present))
        return mean[: len(x)], cov[:, : len(x), : len(x)]

    # ---------------------------------------------------------------------------------------------------------

    def _check_regression(self) -> Regression:
        likelihood = self.model.likelihood
        if not isinstance(likelihood, Regression):
            raise SettingError(f"{type(likelihood).__name__} predicts classes; ask for probabilities.")
        return likelihood

    def _of_observations(self, finish: programs.Finish, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
        x, y = pair_for(x, y, self._z.shape[1], self._precision)
        self.model.likelihood.check(y)
        return self._over_chunks(finish, x, y)

    def _over_chunks(self, finish: programs.Finish, x: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
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

    def _chunk(self, finish: programs.Finish, x: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
        match self._active:
            case PerPoint(n_neighbors):
                own = self._search(x, n_neighbors)
                results = self._of_few(finish, x, own, *others)
                if results is not None:
                    return results

                def compute(model: SparseGP) -> tuple[Array, tuple[Array, ...]]:
                    arrays = self._arrays if model is self.model else jax.tree.leaves(model)
                    arrays, index = self._few(arrays, own)
                    return programs.per_point(arrays, x, index, others, structure=self._structure, finish=finish)

                return self._retried(compute)
            case Union(n_neighbors=n_neighbors):
                index, present = _union(self._search(x, n_neighbors))
                return self._retried(lambda model: programs.with_union(model, x, index, present, others, finish=finish))
            case All():
                return self._retried(lambda model: programs.with_all(model, self._factor, x, others, finish=finish))

    def _of_few(
        self, finish: programs.Finish, x: np.ndarray, own: np.ndarray, *others: np.ndarray
    ) -> tuple[np.ndarray, ...] | None:
        """The results of a few rows, computed on the host; None where that cannot be, or a factor fails."""
        if self._few_points is None or own.size > _FEW:
            return None
        mean, variance = self._few_points(x, own)
        if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
            return None
        if finish is programs.latent:
            return mean, variance
        if finish is programs.moments and self._noise is not None:
            return mean[:, 0], variance[:, 0] + self._noise
        arrays, structure = self._likelihood
        # Asking a GPU takes longer than the few numbers do.
        with jax.default_device(_host()):
            results = programs.of_moments(arrays, mean, variance, others, structure=structure, finish=finish)
        return tuple(np.asarray(result) for result in results)

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


def _host() -> Any:
    """The CPU, or the device in use where JAX was started without one."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.config.jax_default_device  # type: ignore[attr-defined]


def _union(own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The union of the points' active sets, sorted, padded to a power of two, and which of it is really there."""
    index = np.unique(own)
    size = 1 << (len(index) - 1).bit_length()
    present = np.arange(size) < len(index)
    return np.pad(index, (0, size - len(index))), present


def _on_host(outcome: tuple[Array, tuple[Array, ...]]) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    sound, results = outcome
    return np.asarray(sound), tuple(np.asarray(result) for result in results)
