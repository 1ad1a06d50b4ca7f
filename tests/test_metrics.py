import numpy as np
from scipy import stats

from swsgp import metrics


def test_regression_scores(rng):
    y, mean, variance = rng.normal(size=50), np.full(50, 0.3), np.full(50, 1.7)
    np.testing.assert_allclose(metrics.rmse(np.array([1.0, 3.0]), np.array([0.0, 0.0])), np.sqrt(5))
    expected = -stats.norm.logpdf(y, mean, np.sqrt(variance)).mean()
    np.testing.assert_allclose(metrics.gaussian_nll(y, mean, variance), expected)
    assert metrics.coverage(np.arange(4), np.array([0, 0, 3, 0]), np.array([0, 2, 4, 2])) == 0.5


def test_class_scores():
    labels = np.array([0, 1, 2, 1])
    p = np.array([[0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0.6, 0.2, 0.2], [0.0, 1.0, 0.0]])
    assert metrics.error_rate(labels, p) == 0.25
    np.testing.assert_allclose(metrics.class_nll(labels, p), -np.log([0.8, 0.5, 0.2, 1.0]).mean())


def test_calibration_error_is_zero_for_honest_and_large_for_boastful_probabilities(rng):
    p = rng.uniform(size=200_000)
    labels = (rng.uniform(size=len(p)) < p).astype(int)
    honest = np.column_stack([1 - p, p])
    assert metrics.calibration_error(labels, honest) < 0.01
    boastful = np.where(honest > 0.5, 0.999, 0.001)
    np.testing.assert_allclose(metrics.calibration_error(labels, boastful), 0.25, atol=0.01)
