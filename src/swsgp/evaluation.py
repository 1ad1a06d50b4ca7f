"""How good predictions are: all scores, beside those of a linear model and of a constant."""

from dataclasses import dataclass

import numpy as np

from swsgp.metrics import class_scores, regression_scores

# The names of the three systems, in the order in which people read them.
MODEL, LINEAR, CONSTANT = "swsgp", "linear", "constant"


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
