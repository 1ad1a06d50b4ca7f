"""The models that every model has to beat."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

from swsgp.yardsticks import Yardsticks


def test_the_linear_model_of_numbers_is_least_squares_with_the_variance_of_its_errors(rng):
    x = rng.normal(size=(2000, 3))
    y = 5 + x @ [1.0, -2.0, 0.0] + 0.3 * rng.normal(size=2000)
    yardsticks = Yardsticks.of_numbers(x, y, seed=0)
    mean, variance = yardsticks.linear_moments(x)
    np.testing.assert_allclose(mean, LinearRegression().fit(x, y).predict(x), atol=0.02)
    np.testing.assert_allclose(variance, 0.09, rtol=0.1)
    np.testing.assert_allclose(yardsticks.constant, [y.mean(), y.var()])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_linear_model_of_classes_is_logistic_regression(rng, n_classes):
    x = rng.normal(size=(500, 2))
    y = np.digitize(x[:, 0] + 0.5 * rng.normal(size=500), [-0.3, 0.6][: n_classes - 1]).astype(float)
    yardsticks = Yardsticks.of_classes(x, y, n_classes, seed=0)
    expected = LogisticRegression().fit(x, y).predict_proba(x)
    np.testing.assert_allclose(yardsticks.linear_probabilities(x), expected, atol=0.01)
    assert yardsticks.constant == pytest.approx((np.bincount(y.astype(int)) + 1) / (500 + n_classes))


def test_a_class_that_has_not_been_seen_yet_has_a_small_probability(rng):
    x, y = rng.normal(size=(50, 2)), np.tile([0.0, 1.0], 25)
    probabilities = Yardsticks.of_classes(x, y, 3, seed=0).linear_probabilities(x)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    assert (probabilities[:, 2] > 0).all()
    assert (probabilities[:, 2] < 0.05).all()
