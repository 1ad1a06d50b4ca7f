"""A trained model with all that leads from a user's table to it and back: predictions in the user's units."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from swsgp.baselines.exact import FullGP
from swsgp.baselines.predictive import BaselinePredictor, BaselineWithSensitivity
from swsgp.data.scaling import Scaling
from swsgp.data.tables import Encoding
from swsgp.errors import ModelFileError, SettingError
from swsgp.gp.covariances import check_columns, sensitivity
from swsgp.gp.functions import Functions
from swsgp.gp.likelihoods import Classification, Gaussian, Poisson, StudentT
from swsgp.gp.model import JITTER, SparseGP, with_precision
from swsgp.gp.prediction import Predictor
from swsgp.serialization import from_bytes, to_bytes
from swsgp.shapes import precision_scope
from swsgp.yardsticks import Yardsticks


@dataclass(frozen=True)
class Fitted:
    """A trained model in the user's units.

    Inputs are arrays of numbers in the columns that `encoding` makes of a table. `target` is None where observations
    are counts or classes; `labels` are the classes' own names. `spread` is the standard deviation of each scaled
    column in training, which is 0 for a constant one. `rows` are the scaled inputs and observations of training, where
    more rows may be added to them. `record` says how the model came about.
    """

    model: SparseGP | BaselineWithSensitivity
    encoding: Encoding
    inputs: Scaling
    target: Scaling | None
    labels: np.ndarray | None
    yardsticks: Yardsticks
    spread: np.ndarray
    rows: tuple[np.ndarray, np.ndarray] | None
    record: dict[str, Any]

    def scaled(self, y: np.ndarray) -> np.ndarray:
        """Observations as the model takes them."""
        return y if self.target is None else self.target.apply(y)

    @property
    def kind(self) -> str:
        """The name of the system: "swsgp", or one beside it."""
        return str(self.record["settings"]["model"])

    @property
    def sparse(self) -> SparseGP:
        """The model, where only one with inducing variables will do."""
        if not isinstance(self.model, SparseGP):
            raise SettingError(f"model={self.kind!r} has no inducing points, which this takes; use model='swsgp'.")
        return self.model

    @cached_property
    def _for_prediction(self) -> SparseGP:
        # On a CPU float64 costs a prediction little, and a row's result then does not depend on the rows beside it. A
        # model with landmarks, or with less jitter than float32 bears, needs it everywhere.
        is_delicate = self.sparse.landmarks is not None or float(self.sparse.jitter) < JITTER["float32"]
        needs = is_delicate or jax.default_backend() == "cpu"
        return with_precision(self.sparse, "float64") if needs else self.sparse

    @cached_property
    def predictor(self) -> Predictor | BaselinePredictor:
        if isinstance(self.model, SparseGP):
            return Predictor(self._for_prediction, self.model.precision)
        return BaselinePredictor(self.model)

    def moments(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of a new observation."""
        mean, variance = self.predictor.moments(self.inputs.apply(x))
        return self._in_units(mean), variance * self.unit**2

    def quantiles(self, x: np.ndarray, levels: np.ndarray) -> np.ndarray:
        """Quantiles of a new observation, (N, len(levels))."""
        return self._in_units(self.predictor.quantiles(self.inputs.apply(x), levels))

    def moments_and_interval(self, x: np.ndarray, coverage: float) -> tuple[np.ndarray, ...]:
        """Mean and variance of a new observation, and the ends of an interval that holds it with this probability."""
        low, high = 0.5 - coverage / 2, 0.5 + coverage / 2
        if not isinstance(self.predictor, Predictor):
            return *self.moments(x), *self.quantiles(x, np.array([low, high])).T
        mean, variance, lower, upper = self.predictor.moments_and_interval(self.inputs.apply(x), low, high)
        return self._in_units(mean), variance * self.unit**2, self._in_units(lower), self._in_units(upper)

    def assess_numbers(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
        """Mean, variance, ends of 95% intervals, position from 0 to 1, and log density of observations."""
        mean, variance, lower, upper, position, log_density = self.predictor.assess_numbers(
            self.inputs.apply(x), self.scaled(y)
        )
        mean, lower, upper = (self._in_units(values) for values in (mean, lower, upper))
        return mean, variance * self.unit**2, lower, upper, position, log_density - np.log(self.unit)

    def assess_classes(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
        """Class probabilities, and the log-probability of the true class."""
        probabilities, log_density = self.predictor.assess_classes(self.inputs.apply(x), y)
        return _normalised(probabilities), log_density

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Class probabilities, (N, C), each row summing to 1."""
        return _normalised(self.predictor.probabilities(self.inputs.apply(x)))

    def log_density(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Log predictive density of observations in their units, or log-probability of counts and class numbers."""
        return self.predictor.log_density(self.inputs.apply(x), self.scaled(y)) - np.log(self.unit)

    def joint(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean (N,) and covariance (N, N) of new observations at all points together."""
        mean, cov = self._latent_joint(x)
        if isinstance(self.model.likelihood, Poisson):
            rate = np.exp(mean + 0.5 * np.diagonal(cov))
            return rate, np.outer(rate, rate) * np.expm1(cov) + np.diag(rate)
        noise = self.predictor.noise
        return self._in_units(mean), (cov + noise * np.eye(len(mean))) * self.unit**2

    def samples(self, x: np.ndarray, n_samples: int, rng: np.random.Generator) -> np.ndarray:
        """New observations drawn at all points together, (N, n_samples)."""
        mean, cov = self._latent_joint(x)
        latent = rng.multivariate_normal(mean, cov, size=n_samples, method="eigh", check_valid="ignore").T
        match self.model.likelihood:
            case Poisson():
                return rng.poisson(np.exp(latent)).astype(np.float64)
            case StudentT(log_scale=log_scale, dof=dof):
                noise = np.exp(float(log_scale)) * rng.standard_t(dof, size=latent.shape)
            case Gaussian(log_noise=log_noise):
                noise = np.exp(0.5 * float(log_noise)) * rng.standard_normal(latent.shape)
        return self._in_units(latent + noise)

    def functions(self, n_functions: int, rng: np.random.Generator) -> Callable[[np.ndarray], np.ndarray]:
        """Functions without noise, drawn whole: a map from inputs to values, (N, n_functions)."""
        drawn = Functions(self._for_prediction, n_functions, rng)

        def at(x: np.ndarray) -> np.ndarray:
            latent = drawn(self.inputs.apply(x))
            return np.exp(latent) if isinstance(self.model.likelihood, Poisson) else self._in_units(latent)

        return at

    @property
    def relevance(self) -> np.ndarray:
        """Share of each column of the user's table in how fast the function varies; they sum to 1.

        The square root of what `sensitivity` says, times the spread of the column, so that it has no units. The
        columns that stand for the values of one text column are taken together.
        """
        model, n_columns = self.model, len(self.spread)
        found = sensitivity(model.covariance, n_columns) if isinstance(model, SparseGP) else model.sensitivity()
        squared = found * self.spread**2
        size = np.sqrt(np.bincount(self.encoding.sources, weights=squared))
        return size / size.sum() if size.sum() > 0 else np.full(len(size), 1.0 / len(size))

    def __reduce__(self) -> tuple[Any, ...]:
        # Arrays of JAX lose digits where they are unpickled under another precision; files of ours do not.
        return _from_bytes, (to_bytes(self, {}),)

    # ---------------------------------------------------------------------------------------------------------

    @property
    def unit(self) -> float:
        """One unit of the scaled target in the user's units."""
        return 1.0 if self.target is None else float(self.target.scale)

    def _in_units(self, values: np.ndarray) -> np.ndarray:
        values = np.asarray(values, dtype=np.float64)
        return values if self.target is None else self.target.undo(values)

    def _latent_joint(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not isinstance(self.model, SparseGP | FullGP):
            raise SettingError(f"model={self.kind!r} has no joint predictions; use 'swsgp' or 'full-gp'.")
        mean, cov = self.predictor.joint(self.inputs.apply(x))
        return mean[:, 0].astype(np.float64), cov[0].astype(np.float64)


def _normalised(probabilities: np.ndarray) -> np.ndarray:
    probabilities = probabilities.astype(np.float64)
    return np.asarray(probabilities / probabilities.sum(axis=1, keepdims=True))


def _from_bytes(data: bytes) -> Fitted:
    return checked(from_bytes(data)[0], "the data")


def checked(fitted: Any, source: str) -> Fitted:
    """What was read from a file, as a model whose parts fit together."""
    if not isinstance(fitted, Fitted):
        raise ModelFileError(f"{source} is a file of swsgp, but not a model; name the model's file.")
    try:
        model, n_columns = fitted.model, len(fitted.spread)
        fits = (
            (_is_whole(model, n_columns) if isinstance(model, SparseGP) else model.sensitivity().shape == (n_columns,))
            and (fitted.rows is None or fitted.rows[0].shape == (len(fitted.rows[1]), n_columns))
            and fitted.inputs.scale.shape == fitted.spread.shape == (n_columns,)
            and len(fitted.encoding.sources) == n_columns
            and isinstance(model.likelihood, Classification) == (fitted.labels is not None)
            and (fitted.labels is None or len(fitted.labels) == getattr(model.likelihood, "n_classes", 0))
            and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(model))
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise ModelFileError(f"{source} is damaged ({error}); use another copy.") from None
    if not fits:
        raise ModelFileError(f"{source} is damaged: its parts do not fit together; use another copy.")
    with precision_scope(model.precision if isinstance(model, SparseGP) else "float64"):
        return replace(fitted, model=jax.tree.map(jnp.asarray, model))


def _is_whole(model: SparseGP, n_columns: int) -> bool:
    """Whether its arrays fit together."""
    n_inducing, n_latent = len(model.inducing), model.likelihood.n_latent
    model.active_prediction.check(n_inducing)
    check_columns(model.covariance, n_columns)
    return (
        model.inducing.shape == (n_inducing, n_columns)
        and model.variational.mean.shape == (n_inducing, n_latent)
        and (model.landmarks is None or model.landmarks.mean.shape[1] == n_latent)
    )
