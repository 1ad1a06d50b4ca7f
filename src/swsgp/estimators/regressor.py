"""Regression for scikit-learn users, and what a Gaussian process can say beyond a mean."""

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from swsgp.arrays import as_target
from swsgp.data.scaling import Scaling
from swsgp.data.tables import is_missing
from swsgp.errors import DataError, SettingError
from swsgp.estimators.base import SWSGPBase, seed_of
from swsgp.gp.likelihoods import Gaussian, Likelihood, Poisson, StudentT


class SWSGPRegressor(RegressorMixin, SWSGPBase):
    """Gaussian process regression for large tables, with calibrated uncertainty.

    Inputs and target are scaled inside, robustly; all predictions are in the units of the target.

    Parameters
    ----------
    model : str
        "swsgp", or a system to compare with: "svgp" (all inducing points active, a full S; predicts from the
        `n_neighbors` nearest if these are given), "swsgp-u" (one active set for a mini-batch), "full-gp" (exact, up to
        12,000 rows), "inductive-gps" and "transductive-gps" (64 local GPs of 100 rows each, or `n_inducing` of
        `n_neighbors`), "dgp-rbf" (a deep GP by random features).
    n_inducing, n_neighbors : int or "auto"
        M, the number of inducing points, and H, how many of them are active for a row.
    n_landmarks : int or "auto"
        Inducing points that are active for every row, beside its own; 0 for none. "auto": if held-out rows prefer them.
    kernel : str or covariance
        "matern" (a mixture of learned roughness), "matern12", "matern32", "matern52", "rbf", "rational-quadratic",
        "linear", a sum such as "matern32+linear", or a covariance of this package. Named ones have a lengthscale for
        each column. "auto" is "matern" where q(u) is solved for, and "matern52" elsewhere.
    likelihood : str
        "gaussian" (which "auto" is), "student-t" for wild observations, or "poisson" for counts.
    covariance : "diag", "full" or "auto"
        The form of S. A full one is for small M; "auto" is diagonal, and full in the preset "paper" and for
        "svgp".
    active : "per-point", "union" or "all"
        Which inducing points are active: each row's own (SWSGP), one set for a mini-batch (SWSGP-U), all (SVGP).
    learn_inducing : bool or "auto"
        Whether inducing inputs move in training; "auto": in the preset "paper" and for "svgp".
    kl_scale : float or "auto"
        κ, the weight of the KL term. 1 is the paper's; more mends intervals that are too narrow when M is large.
    batch_size, learning_rate, max_steps : number or "auto"
        Of Adam, for the hyper-parameters (or for all that is trained by stochastic gradients).
    time_budget : float, optional
        Seconds after which training stops.
    early_stopping : bool or "auto"
        Whether a tenth of the rows is held out to choose the best model ("auto": from 500 rows on).
    precision : "float32" or "float64"
    preset : "default" or "paper"
        How to train. By default hyper-parameters are learned from neighbours and q(u) is solved for. Where that cannot
        be (a full S, other active sets, inducing inputs that move), and with the paper's settings in "paper", by
        stochastic gradients.
    missing : "error", "drop" or "fill"
        What to do with missing values: refuse them, leave those rows out of training, or fill in medians.
    max_categories : int
        The most values that a text column may have.
    random_state : int, RandomState or None
    verbose : bool
        Whether to show choices and progress.

    Attributes
    ----------
    fitted_ : the trained model with its scaling, columns and training record
    settings_ : dict, what was used where a parameter says "auto", and the seed
    relevance_ : array, share of each input column in how fast the function varies
    n_features_in_, feature_names_in_ : the input columns

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, size=(500, 2))
    >>> y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=500)
    >>> model = SWSGPRegressor().fit(X[:400], y[:400])
    >>> mean, std = model.predict(X[400:], return_std=True)
    >>> bool(np.mean(np.abs(y[400:] - mean) < 2 * std) > 0.8)
    True
    """

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Mean of a new observation at each row, and its standard deviation."""
        x = self._inputs(X)
        mean, variance = self.fitted_.moments(x)
        return (mean, np.sqrt(variance)) if return_std else mean

    def predict_quantiles(self, X: Any, quantiles: Any = (0.05, 0.25, 0.5, 0.75, 0.95)) -> np.ndarray:
        """Quantiles of a new observation, one column for each level between 0 and 1."""
        levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
        if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all():
            raise SettingError(f"quantiles must be between 0 and 1, got {quantiles!r}.")
        x = self._inputs(X)
        return self.fitted_.quantiles(x, levels)

    def predict_interval(self, X: Any, coverage: Any = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of intervals that hold a new observation with probability `coverage`."""
        if not 0 < coverage < 1:
            raise SettingError(f"coverage must be between 0 and 1, got {coverage!r}.")
        ends = self.predict_quantiles(X, (0.5 - coverage / 2, 0.5 + coverage / 2))
        return ends[:, 0], ends[:, 1]

    def predict_joint(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean (N,) and covariance (N, N) of new observations at all rows together.

        Mean and variances are those of `predict`, to rounding.
        """
        x = self._inputs(X)
        return self.fitted_.joint(x)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """New observations drawn at all rows together, (N, n_samples)."""
        x = self._inputs(X)
        return self.fitted_.samples(x, n_samples, np.random.default_rng(seed_of(random_state)))

    def sample_functions(self, n_samples: int = 1, random_state: Any = 0) -> Callable[[Any], np.ndarray]:
        """Functions without noise, drawn whole: a map from a table to their values at its rows, (N, n_samples).

        The same function answers for any rows, however many, in one call or in several; its values at a few rows vary
        together as `predict_joint` says, up to the accuracy of the 4,096 random features that stand for the prior.
        Functions of counts are rates.
        """
        check_is_fitted(self, "fitted_")
        drawn = self.fitted_.functions(n_samples, np.random.default_rng(seed_of(random_state)))
        return lambda X: drawn(self._inputs(X))

    def _as_numbers(self, y: np.ndarray, labels: None) -> np.ndarray:
        if y.dtype.kind not in "biuf":
            y = _numbers_in(y)
        return as_target(y)

    def _learn_labels(self, y: np.ndarray, classes: Any) -> tuple[np.ndarray, None]:
        if classes is not None:
            raise SettingError("classes are for a classifier; SWSGPRegressor learns numbers.")
        return self._as_numbers(y, None), None

    def _likelihood(self, y: np.ndarray, labels: Any) -> tuple[Likelihood, Scaling | None]:
        match self.likelihood:
            case "auto" | "gaussian":
                return Gaussian(0.1), Scaling.of(y)
            case "student-t":
                return StudentT(0.3), Scaling.of(y)
            case "poisson":
                return Poisson(), None
        raise SettingError(f"likelihood must be 'gaussian', 'student-t' or 'poisson', got {self.likelihood!r}.")


def _numbers_in(y: np.ndarray) -> np.ndarray:
    try:
        if y.dtype.kind in "mM" or any(isinstance(value, datetime.date) for value in y):
            raise DataError(
                "the target must be numbers, got dates; turn them into numbers, such as days since the first."
            )
        return np.where(is_missing(y), np.nan, y).astype(np.float64)
    except DataError:
        raise
    except (TypeError, ValueError):
        raise DataError(
            "the target must be numbers, got text or other objects; SWSGPClassifier learns labels."
        ) from None
