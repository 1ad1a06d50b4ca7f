"""What a model has to beat: a constant and a linear model of the same rows."""

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

# A linear model knows what it can know after so many rows.
_MAX_ROWS = 100_000


@dataclass(frozen=True)
class Yardsticks:
    """Coefficients (C, D) and intercepts (C,) of a linear model of scaled inputs, and the constant.

    For numbers C = 1: `spread` is the variance of the linear model's errors, and the constant is the mean, with the
    variance. For classes there are as many as there are classes, or one for two; the constant is their shares.
    """

    coefficients: np.ndarray
    intercepts: np.ndarray
    spread: float
    constant: np.ndarray

    @classmethod
    def of_numbers(cls, x: np.ndarray, y: np.ndarray, seed: int) -> "Yardsticks":
        x, y = _sample(x, y, seed)
        linear = Ridge(1e-3 * len(x)).fit(x, y)
        spread = max(float(np.var(y - linear.predict(x))), 1e-12)
        return cls(linear.coef_[None], np.array([linear.intercept_]), spread, np.array([np.mean(y), np.var(y)]))

    @classmethod
    def of_classes(cls, x: np.ndarray, y: np.ndarray, n_classes: int, seed: int) -> "Yardsticks":
        x, y = _sample(x, y, seed)
        shares = (np.bincount(y.astype(int), minlength=n_classes) + 1.0) / (len(y) + n_classes)
        if len(np.unique(y)) < n_classes:
            return cls(np.zeros((n_classes, x.shape[1])), np.log(shares), 0.0, shares)
        with warnings.catch_warnings():
            # Nearly converged is good enough for a yardstick.
            warnings.simplefilter("ignore", ConvergenceWarning)
            linear = LogisticRegression(max_iter=200, tol=1e-3).fit(x, y)
        return cls(linear.coef_, linear.intercept_, 0.0, shares)

    def linear_moments(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the linear model at scaled inputs."""
        return x @ self.coefficients[0] + self.intercepts[0], np.full(len(x), self.spread)

    def linear_probabilities(self, x: np.ndarray) -> np.ndarray:
        """Class probabilities of the linear model at scaled inputs."""
        scores = x @ self.coefficients.T + self.intercepts
        if scores.shape[1] == 1:
            scores = np.concatenate([np.zeros_like(scores), scores], axis=1)
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(scores / scores.sum(axis=1, keepdims=True))


def _sample(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.default_rng((seed, 1)).permutation(len(x))[:_MAX_ROWS]
    return x[rows], y[rows]
