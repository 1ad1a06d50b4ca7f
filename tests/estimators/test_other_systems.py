"""The systems that the paper compares with, as estimators."""

import numpy as np
import pandas as pd
import pytest
from houses import frame

from swsgp import SWSGPClassifier, SWSGPRegressor, load
from swsgp.baselines.exact import fit_full_gp
from swsgp.baselines.predictive import BaselinePredictor
from swsgp.data.tables import as_arrow
from swsgp.errors import DataError, SettingError
from swsgp.gp.active import All, PerPoint, Union
from swsgp.gp.likelihoods import Poisson

TRAIN, TEST = frame(300), frame(100, seed=1)
LOCAL = {"n_inducing": 8, "n_neighbors": 60, "max_steps": 50}
OPTIONS = {
    "swsgp-u": {"n_inducing": 64, "max_steps": 1000, "learning_rate": 0.02},
    "svgp": {"n_inducing": 64, "max_steps": 1000, "learning_rate": 0.02},
    "full-gp": {"max_steps": 20},
    "inductive-gps": LOCAL,
    "transductive-gps": LOCAL,
    "dgp-rbf": {"max_steps": 2000},
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_each_learns_predicts_scores_and_comes_back_from_its_file(kind, tmp_path):
    model = SWSGPRegressor(model=kind, **OPTIONS[kind]).fit(*TRAIN)
    assert model.score(*TEST) > 0.7
    assert isinstance(getattr(model.fitted_.model, "active", None), Union) == (kind == "swsgp-u")
    mean, std = model.predict(TEST[0], return_std=True)
    lower, upper = model.predict_interval(TEST[0])
    assert (lower < mean).all()
    assert (mean < upper).all()
    evaluation = model.evaluate(*TEST)
    assert list(evaluation.scores) == [kind, "linear", "constant"]
    assert evaluation.scores[kind]["nll"] == pytest.approx(-model.log_score(*TEST), rel=1e-6)
    assert evaluation.scores[kind]["coverage"] == pytest.approx(np.mean((lower < TEST[1]) & (TEST[1] < upper)))
    assert evaluation.scores[kind]["nll"] < evaluation.scores["constant"]["nll"]
    assert model.relevance_.sum() == pytest.approx(1.0)
    assert "<html" in model.report(*TEST)
    model.save(tmp_path / "m.swsgp")
    again, std_again = load(tmp_path / "m.swsgp").predict(TEST[0], return_std=True)
    np.testing.assert_array_equal(again, mean)
    np.testing.assert_array_equal(std_again, std)


def test_a_full_gp_is_that_of_the_scaled_table_and_has_joint_predictions():
    model = SWSGPRegressor(model="full-gp", max_steps=20).fit(*TRAIN)
    fitted = model.fitted_
    x, x_test = (fitted.inputs.apply(fitted.encoding.apply(as_arrow(part[0]))) for part in (TRAIN, TEST))
    by_hand = fit_full_gp(x, fitted.scaled(TRAIN[1].to_numpy()), max_steps=20)
    mean, cov = model.predict_joint(TEST[0])
    np.testing.assert_allclose(mean, fitted.target.undo(by_hand.latent(x_test)[0][:, 0]), rtol=1e-6)
    _, std = model.predict(TEST[0], return_std=True)
    np.testing.assert_allclose(np.sqrt(np.diagonal(cov)), std, rtol=1e-6)
    assert model.sample_y(TEST[0], 3).shape == (100, 3)


def test_an_svgp_has_all_points_active_and_predicts_from_the_nearest_if_asked_to():
    options = {"n_inducing": 32, "max_steps": 20}
    model = SWSGPRegressor(model="svgp", **options).fit(*TRAIN)
    assert isinstance(model.fitted_.model.active, All)
    assert isinstance(model.fitted_.model.active_prediction, All)
    assert (model.settings_["covariance"], model.settings_["learn_inducing"]) == ("full", True)
    near = SWSGPRegressor(model="svgp", n_neighbors=4, **options).fit(*TRAIN)
    assert near.fitted_.model.active_prediction == PerPoint(4)
    assert isinstance(near.fitted_.model.active, All)


@pytest.mark.parametrize("kind", ["svgp", "dgp-rbf"])
def test_classes_are_learned_where_they_can_be(kind):
    X, y = TRAIN
    options = OPTIONS[kind]
    model = SWSGPClassifier(model=kind, **options).fit(X, np.where(y > 2400, "dear", "cheap"))
    assert model.score(TEST[0], np.where(TEST[1] > 2400, "dear", "cheap")) > 0.85
    np.testing.assert_allclose(model.predict_proba(TEST[0]).sum(axis=1), 1.0)


def test_what_a_system_cannot_do_is_said():
    X, y = TRAIN
    with pytest.raises(SettingError, match="model must be one of swsgp, swsgp-u, svgp, full-gp"):
        SWSGPRegressor(model="svm").fit(X, y)
    with pytest.raises(SettingError, match="precision must be"):
        SWSGPRegressor(model="full-gp", precision="float16").fit(X, y)
    with pytest.raises(SettingError, match="n_neighbors must be at most the number of rows, 300, got 400"):
        SWSGPRegressor(model="inductive-gps", n_neighbors=400).fit(X, y)
    with pytest.raises(SettingError, match="model='full-gp' has no checkpoints"):
        SWSGPRegressor(model="full-gp").fit(X, y, checkpoint="here")
    with pytest.raises(SettingError, match="kernel of its own"):
        SWSGPRegressor(model="dgp-rbf", kernel="matern52").fit(X, y)
    with pytest.raises(SettingError, match="model='svgp' has active='all', got active='union'"):
        SWSGPRegressor(model="svgp", active="union").fit(X, y)
    with pytest.raises(SettingError, match="model='full-gp' learns numbers with Gaussian noise"):
        SWSGPClassifier(model="full-gp").fit(X, y > 2400)
    with pytest.raises(SettingError, match="model='full-gp' learns numbers with Gaussian noise"):
        SWSGPRegressor(model="full-gp", likelihood="student-t").fit(X, y)
    with pytest.raises(SettingError, match="takes at most 12000 rows, got 12001"):
        SWSGPRegressor(model="full-gp").fit(np.zeros((12_001, 2)), np.arange(12_001.0))
    local = SWSGPRegressor(model="inductive-gps", n_inducing=2, n_neighbors=10, max_steps=1).fit(X, y)
    with pytest.raises(SettingError, match="model='inductive-gps' has no joint predictions"):
        local.predict_joint(X)
    with pytest.raises(SettingError, match="model='inductive-gps' has no inducing points"):
        local.sample_functions()
    with pytest.raises(SettingError, match="cannot learn more rows"):
        local.partial_fit(X, y)
    with pytest.raises(SettingError, match="model='inductive-gps' cannot learn more rows"):
        local.set_params(model="swsgp").partial_fit(X, y)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("n_inducing", 5), ("n_neighbors", 5), ("n_landmarks", 5), ("kl_scale", 2.0), ("batch_size", 5)],
        *[("learning_rate", 0.1), ("covariance", "full"), ("active", "all"), ("learn_inducing", True)],
        *[("early_stopping", True), ("preset", "paper"), ("time_budget", 5)],
    ],
)
def test_what_a_full_gp_has_no_use_for_is_refused(name, value):
    with pytest.raises(SettingError, match=f"{name} is of no use for model='full-gp'; leave it out"):
        SWSGPRegressor(model="full-gp", **{name: value}).fit(*TRAIN)


def test_counts_lie_in_the_middle_of_their_steps():
    class Known:
        likelihood = Poisson()

        def latent(self, x):
            return np.zeros((2, len(x), 1)), np.full((2, len(x), 1), 0.5)

    *_, position, log_density = BaselinePredictor(Known()).assess_numbers(np.zeros((3, 1)), np.zeros(3))
    np.testing.assert_allclose(position, 0.5 * np.exp(log_density), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["full-gp", "inductive-gps", "dgp-rbf"])
def test_bad_tables_are_refused_with_the_same_words(kind):
    X, y = TRAIN
    model = SWSGPRegressor(model=kind)
    with pytest.raises(DataError, match=r"missing .NaN. in column 'size'"):
        model.fit(X.assign(size=np.where(np.arange(300) == 3, np.nan, X["size"])), y)
    with pytest.raises(DataError, match="text"):
        model.fit(X, pd.Series(["a"] * 300))
