"""The default way to train, as a whole."""

import jax
import numpy as np
import pytest

from swsgp import Bernoulli, Gaussian, Matern52, PerPoint, Predictor, Settings, create
from swsgp.errors import SettingError
from swsgp.fit import checkpoints, solved
from swsgp.fit.solved import KL_FACTORS, train_by_solving

SETTINGS = Settings(steps=128, batch_size=64, learning_rate=0.05)


def data(n=400, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, size=(n, 2))
    return x, np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=n)


def start(x, likelihood=None, n_inducing=None, **options):
    return create(
        x, Matern52(np.ones(2)), likelihood or Gaussian(0.1), PerPoint(16), n_inducing=n_inducing or len(x),
        placement="subset", **options,
    )  # fmt: skip


def test_it_explains_what_can_be_explained_with_honest_intervals():
    x, y = data()
    trained = train_by_solving(start(x), x, y, SETTINGS, kl_factor=0.5, n_held_out=40).trained
    x_test, y_test = data(seed=1)
    mean, variance = Predictor(trained.model).moments(x_test)
    assert np.sqrt(np.mean((mean - y_test) ** 2)) < 0.14
    assert np.mean(np.abs(y_test - mean) < 1.96 * np.sqrt(variance)) == pytest.approx(0.95, abs=0.04)


def test_classes_are_learned_too():
    x, y = data(600)
    found = train_by_solving(start(x, Bernoulli()), x, (y > 0) * 1.0, SETTINGS, kl_factor=0.2, n_held_out=60)
    x_test, y_test = data(seed=1)
    p = Predictor(found.trained.model).probabilities(x_test)[:, 1]
    assert np.mean((p > 0.5) == (y_test > 0)) > 0.92


def test_the_kl_scale_is_the_largest_that_held_out_rows_do_not_mind():
    x, y = data()
    found = train_by_solving(start(x), x, y, SETTINGS, kl_factor=0.5, n_held_out=40)
    assert tuple(found.tried) == KL_FACTORS
    assert found.kl_factor in KL_FACTORS
    scores = {1.0: np.full(100, -0.5), 0.5: np.full(100, -0.2), 0.2: np.full(100, -0.2)}
    assert solved._largest_good(scores) == 0.5
    assert train_by_solving(start(x), x, y, SETTINGS, kl_factor=0.3).kl_factor == 0.3


def test_held_out_rows_have_no_part_in_hyper_parameters():
    x, y = data()
    _, held = solved.split_held_out(len(x), 0.1, SETTINGS.seed)
    spoiled = y.copy()
    spoiled[held] = 100.0
    one, other = (
        train_by_solving(start(x), x, target, SETTINGS, kl_factor=0.5, n_held_out=40).trained.model
        for target in (y, spoiled)
    )
    for ours, theirs in zip(jax.tree.leaves(one.covariance), jax.tree.leaves(other.covariance), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_an_interrupted_run_keeps_a_model_and_goes_on_to_the_same_one(tmp_path, monkeypatch, precision):
    x, y = data()
    model = start(x, precision=precision)
    whole = train_by_solving(model, x, y, SETTINGS, kl_factor=0.5, n_held_out=40)
    path = tmp_path / "run.checkpoint"
    update = solved.ProgressBar.update

    def stop(self, report):
        update(self, report)
        raise KeyboardInterrupt

    monkeypatch.setattr(solved.ProgressBar, "update", stop)
    broken = train_by_solving(model, x, y, SETTINGS, kl_factor=0.5, n_held_out=40, checkpoint=path)
    assert broken.trained.reason == "interrupted"
    assert broken.trained.steps == 64
    assert np.isfinite(Predictor(broken.trained.model).moments(x)).all()
    monkeypatch.setattr(solved.ProgressBar, "update", update)
    resumed = train_by_solving(model, x, y, SETTINGS, kl_factor=0.5, n_held_out=40, checkpoint=path, resume=True)
    for one, other in zip(jax.tree.leaves(resumed.trained.model), jax.tree.leaves(whole.trained.model), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [report.step for report in resumed.trained.history] == [report.step for report in whole.trained.history]
    with pytest.raises(SettingError, match="is of another run"):
        train_by_solving(model, x, y + 1, SETTINGS, kl_factor=0.5, n_held_out=40, checkpoint=path, resume=True)


def test_checkpoints_are_written_as_time_passes(tmp_path, monkeypatch):
    x, y = data(100)
    path = tmp_path / "run.checkpoint"
    monkeypatch.setattr(checkpoints, "_EVERY", 0.0)
    train_by_solving(start(x), x, y, SETTINGS, kl_factor=0.5, checkpoint=path)
    assert path.exists()


def test_a_budget_of_time_ends_learning_early():
    x, y = data()
    found = train_by_solving(
        start(x), x, y, Settings(steps=10**6, batch_size=64, time_budget=2.0), kl_factor=0.5, n_held_out=40
    )
    assert found.trained.reason == "time"
    assert found.trained.steps < 10**6
