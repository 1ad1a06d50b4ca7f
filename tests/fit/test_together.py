"""Models trained at the same time come out as they would alone."""

from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
import pytest

from swsgp import All, Gaussian, Matern52, PerPoint, Settings, create, train
from swsgp.errors import SettingError
from swsgp.fit import loop, together
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


def bad_one(good):
    """A model whose inducing inputs coincide, with too little jitter for that."""
    bad = eqx.tree_at(lambda m: m.inducing, good, np.zeros_like(good.inducing))
    return eqx.tree_at(lambda m: m.jitter, bad, np.zeros_like(good.jitter) + 1e-18)


@pytest.mark.parametrize("chunk", [1000, 10])
def test_a_model_that_turns_bad_goes_on_with_more_jitter_and_half_the_rate(monkeypatch, chunk):
    monkeypatch.setattr(together, "_CHUNK", chunk)
    data = waves()
    good, other = untrained(data, PerPoint(4))
    with pytest.warns(match="1 of 2 models met values that are not finite"):
        models = train_together([good, bad_one(other)], data, SETTINGS)
    jitter = float(models[1].jitter)
    n_halved = round(np.log10(jitter / 1e-18))
    assert 1 <= n_halved <= 12
    slower = replace(SETTINGS, learning_rate=SETTINGS.learning_rate / 2**n_halved)
    enough = eqx.tree_at(lambda m: m.jitter, bad_one(other), np.full_like(other.jitter, jitter))
    expected = train(enough, *data[1], slower).model
    # So little jitter leaves few digits; the whole rate would move these parameters by 0.5.
    learned, alone = (jax.tree.leaves((model.covariance, model.likelihood)) for model in (models[1], expected))
    np.testing.assert_allclose(learned, alone, atol=0.02)
    expected = train(good, *data[0], SETTINGS).model
    np.testing.assert_allclose(models[0].inducing, expected.inducing, rtol=1e-9)


def test_a_model_that_stays_bad_is_trained_alone(monkeypatch):
    monkeypatch.setattr(together, "MAX_RETRIES", 0)
    data = waves()
    good, other = untrained(data, PerPoint(4))
    with pytest.warns(match="not finite"):
        models = train_together([good, bad_one(other)], data, SETTINGS)
    with pytest.warns(match="not finite"):
        alone = train(bad_one(other), *data[1], SETTINGS).model
    for ours, expected in zip(jax.tree.leaves(models[1]), jax.tree.leaves(alone), strict=True):
        np.testing.assert_array_equal(ours, expected)
    expected = train(good, *data[0], SETTINGS).model
    np.testing.assert_allclose(models[0].inducing, expected.inducing, rtol=1e-9)


def test_a_model_that_stays_bad_alone_as_well_is_none_and_the_others_stay(monkeypatch):
    monkeypatch.setattr(together, "MAX_RETRIES", 0)
    monkeypatch.setattr(loop, "MAX_RETRIES", 0)
    data = waves()
    good, other = untrained(data, PerPoint(4))
    with pytest.warns(match="not finite"):
        models = train_together([good, bad_one(other)], data, SETTINGS)
    assert models[0] is not None
    assert models[1] is None


def test_inducing_inputs_that_stay_are_refused():
    data = waves()
    with pytest.raises(SettingError, match="learn_inducing"):
        train_together(untrained(data, PerPoint(4)), data, Settings(steps=5))
