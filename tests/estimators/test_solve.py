"""Estimators that solve for q(u)."""

from dataclasses import replace

import numpy as np
import pytest
from houses import frame

from swsgp import SWSGPClassifier, SWSGPRegressor, load
from swsgp.data.tables import as_arrow
from swsgp.errors import SettingError
from swsgp.estimators import training
from swsgp.fit.solved import Form, solved

SOLVE = {"n_inducing": 128, "n_neighbors": 16, "max_steps": 64, "batch_size": 64, "kernel": "rbf"}
TEST = frame(200, seed=1)


def test_a_regressor_explains_what_can_be_explained_and_says_what_it_chose(tmp_path):
    X, y = frame(600)
    model = SWSGPRegressor(**{**SOLVE, "max_steps": 256}).fit(X, y)
    assert model.score(*TEST) > 0.95
    lower, upper = model.predict_interval(TEST[0])
    assert np.mean((lower < TEST[1]) & (TEST[1] < upper)) == pytest.approx(0.95, abs=0.05)
    tried = model.fitted_.record["held_out_scores"]
    assert {form["n_landmarks"] for form in tried} == {0, 64}
    assert any(all(model.settings_[name] == form[name] for name in ("n_landmarks", "kl_scale")) for form in tried)
    # Scores of held-out rows are in the units of the target.
    assert max(form["score"] for form in tried) == pytest.approx(model.log_score(*TEST), abs=0.5)
    model.save(tmp_path / "m.swsgp")
    np.testing.assert_array_equal(load(tmp_path / "m.swsgp").predict(TEST[0]), model.predict(TEST[0]))


@pytest.mark.parametrize("likelihood", ["student-t", "poisson"])
def test_other_likelihoods_are_solved_for_too(likelihood):
    X, y = frame(400)
    y, y_test = ((np.round(part / 200) if likelihood == "poisson" else part) for part in (y, TEST[1]))
    model = SWSGPRegressor(likelihood=likelihood, early_stopping=False, **SOLVE).fit(X, y)
    assert model.score(TEST[0], y_test) > 0.7


def test_a_skewed_target_with_students_t_has_little_noise():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(400, 1))
    y = np.exp(2 * np.sin(3 * x[:, 0])) + 0.02 * rng.normal(size=400)
    model = SWSGPRegressor(likelihood="student-t", early_stopping=False, **SOLVE).fit(x, y)
    assert model.log_score(x, y) > 0.5


@pytest.mark.parametrize("kl_scale", [0.5, 3.0])
def test_a_kl_scale_that_is_given_is_taken(kl_scale):
    model = SWSGPRegressor(kl_scale=kl_scale, **SOLVE).fit(*frame(200))
    assert model.settings_["kl_scale"] == pytest.approx(kl_scale)


def test_many_classes_are_solved_for():
    X, y = frame(600)
    labels, expected = (np.digitize(part, [1800, 2600]) for part in (y, TEST[1]))
    model = SWSGPClassifier(early_stopping=False, **SOLVE).fit(X, labels)
    assert model.score(TEST[0], expected) > 0.88
    np.testing.assert_allclose(model.predict_proba(TEST[0]).sum(axis=1), 1.0)


def test_the_papers_preset_trains_as_the_paper_does():
    X, y = frame(200)
    model = SWSGPRegressor(preset="paper", n_inducing=16, n_neighbors=4, max_steps=50).fit(X, y)
    settings = model.settings_
    assert (settings["covariance"], settings["learn_inducing"], settings["kl_scale"]) == ("full", True, 1.0)
    assert model.fitted_.record["steps"] == 50


@pytest.mark.parametrize(("n_inducing", "n_landmarks"), [("auto", 0), (100, 16)])
def test_rows_that_come_later_count_as_much_as_the_first(n_inducing, n_landmarks):
    """Against a fit on all rows with the same hyper-parameters."""
    X, y = frame(400)
    sizes = {"n_inducing": n_inducing, "n_landmarks": n_landmarks, "max_steps": 64, "early_stopping": False}
    model = SWSGPRegressor(**sizes).partial_fit(X[:200], y[:200])
    first = model.fitted_
    factor = model.settings_["kl_scale"] * model.settings_["n_neighbors"] / model.settings_["n_inducing"]
    model.partial_fit(X[200:300], y[200:300]).partial_fit(X[300:], y[300:])
    assert model.fitted_.record["rows"] == 400
    assert model.settings_["n_inducing"] == (400 if n_inducing == "auto" else 100)
    x, scaled = first.inputs.apply(first.encoding.apply(as_arrow(X))), first.scaled(y.to_numpy())
    form = Form(model.settings_["n_inducing"], model.settings_["n_neighbors"], n_landmarks, factor)
    whole = replace(first, model=solved(first.model, x, scaled, form, "float32", 0))
    expected = whole.moments(first.encoding.apply(as_arrow(TEST[0])))
    mean, std = model.predict(TEST[0], return_std=True)
    np.testing.assert_allclose(mean, expected[0], rtol=1e-3)
    np.testing.assert_allclose(std, np.sqrt(expected[1]), rtol=1e-3)
    np.testing.assert_array_equal(
        model.fitted_.model.covariance.log_lengthscale, first.model.covariance.log_lengthscale
    )


def test_a_model_that_was_saved_goes_on_learning(tmp_path):
    X, y = frame(300)
    options = {"max_steps": 64, "early_stopping": False}
    model = SWSGPRegressor(kl_scale=3.0, **options).fit(X[:200], y[:200])
    model.save(tmp_path / "m.swsgp")
    loaded = load(tmp_path / "m.swsgp").partial_fit(X[200:], y[200:])
    np.testing.assert_array_equal(loaded.predict(TEST[0]), model.partial_fit(X[200:], y[200:]).predict(TEST[0]))
    assert loaded.settings_["n_inducing"] == 300
    assert loaded.settings_["kl_scale"] == pytest.approx(3.0)


def test_rows_too_many_to_be_kept_are_not_forgotten_silently(monkeypatch):
    X, y = frame(200)
    monkeypatch.setattr(training, "_MAX_KEPT", 100)
    model = SWSGPRegressor(max_steps=64).fit(X, y)
    with pytest.raises(SettingError, match="trained on 200 rows, too many to be kept"):
        model.partial_fit(X, y)


def test_functions_are_drawn_in_the_units_of_the_target():
    X, y = frame(300)
    model = SWSGPRegressor(max_steps=64).fit(X, y)
    function = model.sample_functions(200, random_state=3)
    values = function(TEST[0])
    assert values.shape == (200, 200)
    mean, std = model.predict(TEST[0], return_std=True)
    np.testing.assert_allclose(values.mean(axis=1), mean, atol=4 * std.max() / np.sqrt(200) + 30)
    np.testing.assert_allclose(function(TEST[0][:5]), values[:5], rtol=1e-6)
