"""How good a trained model's predictions are: all scores, beside those of a linear model and of a constant."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from swsgp.errors import DataError
from swsgp.fitted import Fitted
from swsgp.metrics import class_scores, regression_scores

# The systems beside the model's own, which goes by its name and comes first.
LINEAR, CONSTANT = "linear", "constant"


@dataclass(frozen=True)
class RegressionEvaluation:
    """Predictions and observations of the same rows, in the units of the target.

    `lower` and `upper` are the ends of 95% intervals; `position` says where each observation lies in its predictive
    distribution, from 0 to 1 (uniform if that is calibrated). `scores` has one dictionary for each system.
    """

    observed: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    position: np.ndarray
    log_density: np.ndarray
    scores: dict[str, dict[str, float]]


@dataclass(frozen=True)
class ClassEvaluation:
    """Class probabilities and true classes of the same rows; `observed` are positions in `labels`."""

    labels: tuple[str, ...]
    observed: np.ndarray
    probabilities: np.ndarray
    log_density: np.ndarray
    scores: dict[str, dict[str, float]]


Evaluation = RegressionEvaluation | ClassEvaluation


def evaluate(fitted: Fitted, batches: Iterable[tuple[np.ndarray, np.ndarray]]) -> Evaluation:
    """Evaluate a model on labelled rows that come in batches: inputs as numbers, and numbers or class positions."""
    if fitted.labels is None:
        return _of_numbers(fitted, batches)
    return _of_classes(fitted, tuple(str(label) for label in fitted.labels), batches)


def _of_numbers(fitted: Fitted, batches: Iterable[tuple[np.ndarray, np.ndarray]]) -> RegressionEvaluation:
    parts = [
        (y, *fitted.assess_numbers(x, y), *fitted.yardsticks.linear_moments(fitted.inputs.apply(x))) for x, y in batches
    ]
    _check_rows(parts)
    y, mean, variance, lower, upper, position, log_density, linear_mean, linear_variance = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    constant_mean, constant_variance = fitted.yardsticks.constant
    scores = {
        fitted.kind: regression_scores(y, mean, variance, nll=-float(np.mean(log_density)), interval=(lower, upper)),
        LINEAR: regression_scores(y, linear_mean, linear_variance),
        CONSTANT: regression_scores(y, np.full(len(y), constant_mean), np.full(len(y), max(constant_variance, 1e-300))),
    }
    return RegressionEvaluation(y, mean, np.sqrt(variance), lower, upper, position, log_density, scores)


def _of_classes(
    fitted: Fitted, names: tuple[str, ...], batches: Iterable[tuple[np.ndarray, np.ndarray]]
) -> ClassEvaluation:
    parts = [
        (labels, *fitted.assess_classes(x, labels), fitted.yardsticks.linear_probabilities(fitted.inputs.apply(x)))
        for x, labels in batches
    ]
    _check_rows(parts)
    observed, probabilities, log_density, linear = (np.concatenate(column) for column in zip(*parts, strict=True))
    scores = {
        fitted.kind: class_scores(observed, probabilities),
        LINEAR: class_scores(observed, linear),
        CONSTANT: class_scores(observed, np.tile(fitted.yardsticks.constant, (len(observed), 1))),
    }
    return ClassEvaluation(names, observed.astype(int), probabilities, log_density, scores)


def _check_rows(parts: list[tuple[np.ndarray, ...]]) -> None:
    if not parts:
        raise DataError("there are no rows to compare with.")
