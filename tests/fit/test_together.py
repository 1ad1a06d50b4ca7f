"""Models trained at the same time come out as they would alone."""

import equinox as eqx
import jax
import numpy as np
import pytest

from swsgp import All, Gaussian, Matern52, PerPoint, Settings, create, train
from swsgp.errors import SettingError
from swsgp.fit.together import train_together

SETTINGS = Settings(steps=30, batch_size=16, learning_rate=0.02, learn_inducing=True)


def waves():
    """Two data sets of different lengths."""
    rng = np.random.default_rng(0)
    data = []
    for n in (60, 75):
        x = rng.uniform(-2, 2, size=(n, 1))
        data.append((x.astype(np.float64), np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=n)))
    return data


def untrained(data, active):
    options = {"n_inducing": 10, "covariance_form": "full", "precision": "float64"}
    return [create(x, Matern52(0.7), Gaussian(0.1), active, **options) for x, _ in data]


@pytest.mark.parametrize("active", [PerPoint(4), All()])
def test_as_alone(active):
    data = waves()
    models = untrained(data, active)
    for model, start, (x, y) in zip(train_together(models, data, SETTINGS), models, data, strict=True):
        alone = train(start, x, y, SETTINGS).model
        for ours, expected in zip(jax.tree.leaves(model), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-11)


def test_a_model_that_turns_bad_is_trained_alone():
    data = waves()
    good, other = untrained(data, PerPoint(4))
    bad = eqx.tree_at(lambda m: m.inducing, other, np.zeros_like(other.inducing))
    bad = eqx.tree_at(lambda m: m.jitter, bad, np.zeros_like(other.jitter) + 1e-18)
    with pytest.warns(match="not finite"):
        models = train_together([good, bad], data, SETTINGS)
    with pytest.warns(match="not finite"):
        alone = train(bad, *data[1], SETTINGS).model
    for ours, expected in zip(jax.tree.leaves(models[1]), jax.tree.leaves(alone), strict=True):
        np.testing.assert_array_equal(ours, expected)
    expected = train(good, *data[0], SETTINGS).model
    np.testing.assert_allclose(models[0].inducing, expected.inducing, rtol=1e-9)


def test_inducing_inputs_that_stay_are_refused():
    data = waves()
    with pytest.raises(SettingError, match="learn_inducing"):
        train_together(untrained(data, PerPoint(4)), data, Settings(steps=5))
