"""Estimators that solve for q(u)."""

import numpy as np
import pytest
from houses import frame

from swsgp import SWSGPClassifier, SWSGPRegressor, load

SOLVE = {"preset": "solve", "n_inducing": 128, "n_neighbors": 16, "max_steps": 64, "batch_size": 64}
TEST = frame(200, seed=1)


def test_a_regressor_explains_what_can_be_explained_and_says_what_it_chose(tmp_path):
    X, y = frame(600)
    model = SWSGPRegressor(**{**SOLVE, "max_steps": 256}).fit(X, y)
    assert model.score(*TEST) > 0.95
    lower, upper = model.predict_interval(TEST[0])
    assert np.mean((lower < TEST[1]) & (TEST[1] < upper)) == pytest.approx(0.95, abs=0.05)
    tried = model.fitted_.record["held_out_score_of_kl_scale"]
    assert f"{model.settings_['kl_scale']:g}" in tried
    # Scores of held-out rows are in the units of the target.
    assert max(tried.values()) == pytest.approx(model.log_score(*TEST), abs=0.5)
    model.save(tmp_path / "m.swsgp")
    np.testing.assert_array_equal(load(tmp_path / "m.swsgp").predict(TEST[0]), model.predict(TEST[0]))


@pytest.mark.parametrize("likelihood", ["student-t", "poisson"])
def test_other_likelihoods_are_solved_for_too(likelihood):
    X, y = frame(400)
    y, y_test = ((np.round(part / 200) if likelihood == "poisson" else part) for part in (y, TEST[1]))
    model = SWSGPRegressor(likelihood=likelihood, early_stopping=False, **SOLVE).fit(X, y)
    assert model.score(TEST[0], y_test) > 0.7


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
