"""How good a trained model's predictions are: all scores, beside those of a linear model and of a constant."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from swsgp.errors import DataError
from swsgp.fitted import Fitted
from swsgp.metrics import ClassTally, NumberTally, class_scores

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


def evaluate(fitted: Fitted, x: np.ndarray, y: np.ndarray) -> Evaluation:
    """Evaluate a model on labelled rows: inputs as numbers, and numbers or class positions."""
    if fitted.labels is None:
        mean, variance, lower, upper, position, log_density = fitted.assess_numbers(x, y)
        tallies = _of_numbers(fitted, x, y, mean, variance, lower, upper, log_density)
        scores = {system: tally.scores() for system, tally in tallies.items()}
        return RegressionEvaluation(y, mean, np.sqrt(variance), lower, upper, position, log_density, scores)
    probabilities, log_density = fitted.assess_classes(x, y)
    scores = {system: class_scores(y, p) for system, p in _of_systems(fitted, x, probabilities).items()}
    names = tuple(str(label) for label in fitted.labels)
    return ClassEvaluation(names, y.astype(int), probabilities, log_density, scores)


def score_parts(fitted: Fitted, parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> dict[str, dict[str, float]]:
    """The scores of rows that come in parts, in memory that does not grow with their number."""
    totals: dict[str, NumberTally] | dict[str, ClassTally] = {}
    for x, y in parts:
        if fitted.labels is None:
            mean, variance, lower, upper, _, log_density = fitted.assess_numbers(x, y)
            tallies: Any = _of_numbers(fitted, x, y, mean, variance, lower, upper, log_density)
        else:
            systems = _of_systems(fitted, x, fitted.probabilities(x))
            edges = {system: tally.edges for system, tally in totals.items() if isinstance(tally, ClassTally)}
            tallies = {system: ClassTally.of(y, p, edges.get(system)) for system, p in systems.items()}
        totals = {system: totals[system] + tally for system, tally in tallies.items()} if totals else tallies
    if not totals:
        raise DataError("there are no rows to compare with.")
    return {system: tally.scores() for system, tally in totals.items()}


def _of_numbers(
    fitted: Fitted,
    x: np.ndarray,
    y: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    log_density: np.ndarray,
) -> dict[str, NumberTally]:
    """A tally for each system."""
    constant_mean, constant_variance = fitted.yardsticks.constant
    linear = fitted.yardsticks.linear_moments(fitted.inputs.apply(x))
    constant = np.full(len(y), constant_mean), np.full(len(y), max(constant_variance, 1e-300))
    return {
        fitted.kind: NumberTally.of(y, mean, variance, -log_density, (lower, upper)),
        LINEAR: NumberTally.of(y, *linear),
        CONSTANT: NumberTally.of(y, *constant),
    }


def _of_systems(fitted: Fitted, x: np.ndarray, probabilities: np.ndarray) -> dict[str, np.ndarray]:
    """The class probabilities of each system."""
    return {
        fitted.kind: probabilities,
        LINEAR: fitted.yardsticks.linear_probabilities(fitted.inputs.apply(x)),
        CONSTANT: np.tile(fitted.yardsticks.constant, (len(x), 1)),
    }
