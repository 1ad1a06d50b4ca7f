"""Scores of predictions. All take NumPy arrays with one entry, or one row, for each case."""

import numpy as np


def rmse(y: np.ndarray, mean: np.ndarray) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def gaussian_nll(y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> float:
    """Mean negative log-density of y under N(mean, variance)."""
    return float(0.5 * np.mean(np.log(2.0 * np.pi * variance) + (y - mean) ** 2 / variance))


def coverage(y: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> float:
    """Share of the cases inside their interval."""
    return float(np.mean((lower <= y) & (y <= upper)))


def error_rate(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Share of the cases whose most probable class is wrong; labels count from 0."""
    return float(np.mean(np.argmax(probabilities, axis=1) != labels))


def class_nll(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Mean negative log-probability of the true class."""
    chosen = probabilities[np.arange(len(labels)), labels.astype(int)]
    return float(-np.mean(np.log(np.maximum(chosen, np.finfo(float).tiny))))


def calibration_error(labels: np.ndarray, probabilities: np.ndarray, n_bins: int = 15) -> float:
    """Expected calibration error: how far confidence and accuracy are apart, over bins of equal width.

    Confidence is the probability of the most probable class. The mean over bins is weighted by their cases.
    """
    confidence = probabilities.max(axis=1)
    right = np.argmax(probabilities, axis=1) == labels
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    gap = np.bincount(bins, weights=right - confidence, minlength=n_bins)
    return float(np.abs(gap).sum() / len(labels))
