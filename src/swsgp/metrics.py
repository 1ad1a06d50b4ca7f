r"""Scores of predictions, with the scores of knowing nothing beside them.

All functions take NumPy arrays with one entry, or one row, for each case. Class labels count from 0.
"""

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import rankdata

# The paper's regression tables have ¼ log 2π where the Gaussian log-density has ½ log 2π.
PAPER_SHIFT = 0.25 * float(np.log(2.0 * np.pi))

_TINY = np.finfo(float).tiny


# ---------------------------------------------------------------------------------------------- regression


def rmse(y: np.ndarray, mean: np.ndarray) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def mae(y: np.ndarray, mean: np.ndarray) -> float:
    """Mean absolute error."""
    return float(np.mean(np.abs(y - mean)))


def r2(y: np.ndarray, mean: np.ndarray) -> float:
    """Share of the variance that is explained; 0 for the best constant, NaN where y is constant."""
    spread = np.sum((y - np.mean(y)) ** 2)
    return float(1.0 - np.sum((y - mean) ** 2) / spread) if spread > 0 else float("nan")


def gaussian_nll(y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> float:
    """Mean negative log-density of y under N(mean, variance)."""
    return float(0.5 * np.mean(np.log(2.0 * np.pi * variance) + (y - mean) ** 2 / variance))


def crps(y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> float:
    r"""Mean continuous ranked probability score of N(mean, variance), in the units of y; 0 is perfect.

    $\sigma\,[z(2\Phi(z) - 1) + 2\varphi(z) - 1/\sqrt\pi]$ with $z = (y - \mu)/\sigma$.
    """
    std = np.sqrt(variance)
    z = (y - mean) / std
    density = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    return float(np.mean(std * (z * (2.0 * ndtr(z) - 1.0) + 2.0 * density - 1.0 / np.sqrt(np.pi))))


def coverage(y: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> float:
    """Share of the cases inside their interval."""
    return float(np.mean((lower <= y) & (y <= upper)))


def width(lower: np.ndarray, upper: np.ndarray) -> float:
    """Mean width of the intervals."""
    return float(np.mean(upper - lower))


def pit(y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Where each y lies in its predictive N(mean, variance), from 0 to 1; uniform if that is calibrated."""
    return np.asarray(ndtr((y - mean) / np.sqrt(variance)))


# ------------------------------------------------------------------------------------------------- classes


def error_rate(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Share of the cases whose most probable class is wrong."""
    return float(np.mean(np.argmax(probabilities, axis=1) != labels))


def class_nll(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Mean negative log-probability of the true class."""
    chosen = probabilities[np.arange(len(labels)), labels.astype(int)]
    return float(-np.mean(np.log(np.maximum(chosen, _TINY))))


def brier(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Mean squared distance between the probabilities and the truth, summed over classes; from 0 to 2."""
    truth = np.eye(probabilities.shape[1])[labels.astype(int)]
    return float(np.mean(np.sum((probabilities - truth) ** 2, axis=1)))


def calibration_error(labels: np.ndarray, probabilities: np.ndarray, n_bins: int = 15) -> float:
    """Expected calibration error: how far confidence and accuracy are apart, over bins of equal width.

    Confidence is the probability of the most probable class. The mean over bins is weighted by their cases.
    """
    confidence = probabilities.max(axis=1)
    right = np.argmax(probabilities, axis=1) == labels
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    gap = np.bincount(bins, weights=right - confidence, minlength=n_bins)
    return float(np.abs(gap).sum() / len(labels))


def auc(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Area under the ROC curve; for more than two classes, the mean over each class against the rest.

    The chance that a case of the class scores higher than one outside it, ties counting half. NaN for classes
    that have no case, or every case; they are left out of the mean.
    """
    n_classes = probabilities.shape[1]
    areas = [_binary_auc(labels == c, probabilities[:, c]) for c in ([1] if n_classes == 2 else range(n_classes))]
    known = [area for area in areas if not np.isnan(area)]
    return float(np.mean(known)) if known else float("nan")


def _binary_auc(is_class: np.ndarray, score: np.ndarray) -> float:
    n_in, n_out = int(np.sum(is_class)), int(np.sum(~is_class))
    if n_in == 0 or n_out == 0:
        return float("nan")
    ranks = rankdata(score)
    return float((ranks[is_class].sum() - 0.5 * n_in * (n_in + 1)) / (n_in * n_out))


def base_rates(labels: np.ndarray, n_classes: int) -> np.ndarray:
    """Share of each class."""
    return np.bincount(labels.astype(int), minlength=n_classes) / len(labels)


def entropy(rates: np.ndarray) -> float:
    """Entropy of class shares in nats: the NLL of always predicting them."""
    present = rates[rates > 0]
    return float(-np.sum(present * np.log(present)))


# -------------------------------------------------------------------------------------------- all together


def regression_scores(
    y: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    nll: float | None = None,
    interval: tuple[np.ndarray, np.ndarray] | None = None,
) -> dict[str, float]:
    """All regression scores of predictions N(mean, variance).

    `nll` and the 95% `interval` are the true ones where the predictive density is not Gaussian. `nll_paper` is the
    NLL in the convention of the paper's tables. `nll_constant` is that of the mean and variance of y itself, the
    score of knowing nothing about the inputs.
    """
    reach = ndtri(0.975) * np.sqrt(variance)
    lower, upper = (mean - reach, mean + reach) if interval is None else interval
    nll = gaussian_nll(y, mean, variance) if nll is None else nll
    spread = np.full(len(y), max(float(np.var(y)), _TINY))
    return {
        "rmse": rmse(y, mean),
        "mae": mae(y, mean),
        "r2": r2(y, mean),
        "nll": nll,
        "nll_paper": nll - PAPER_SHIFT,
        "crps": crps(y, mean, variance),
        "coverage": coverage(y, lower, upper),
        "width": width(lower, upper),
        "std_constant": float(np.std(y)),
        "nll_constant": gaussian_nll(y, np.full(len(y), np.mean(y)), spread),
    }


def class_scores(labels: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """All class scores, with the error and NLL of always predicting the base rates beside them."""
    rates = base_rates(labels, probabilities.shape[1])
    return {
        "error": error_rate(labels, probabilities),
        "nll": class_nll(labels, probabilities),
        "brier": brier(labels, probabilities),
        "ece": calibration_error(labels, probabilities),
        "auc": auc(labels, probabilities),
        "base_error": float(1.0 - rates.max()),
        "base_entropy": entropy(rates),
    }
