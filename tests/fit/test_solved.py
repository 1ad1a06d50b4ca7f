"""The default way to train, as a whole."""

import jax
import numpy as np
import pytest

from swsgp import Bernoulli, Gaussian, Matern52, PerPoint, Predictor, Settings, create
from swsgp.errors import SettingError
from swsgp.fit import checkpoints, solved
from swsgp.fit.solved import KL_FACTORS, Form, train_by_solving
from swsgp.gp.model import with_precision

SETTINGS = Settings(steps=128, batch_size=64, learning_rate=0.05)


def data(n=400, seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, size=(n, 2))
    return x, np.sin(2 * x[:, 0]) + noise * rng.normal(size=n)


def start(x, likelihood=None, **options):
    return create(
        x, Matern52(np.ones(2)), likelihood or Gaussian(0.1), PerPoint(16), n_inducing=len(x), placement="subset",
        **options,
    )  # fmt: skip


def forms(x, n_landmarks=(0,), factors=KL_FACTORS):
    return [Form(len(x), 16, n, factor) for n in n_landmarks for factor in factors]


def test_it_explains_what_can_be_explained_with_honest_intervals():
    x, y = data()
    trained = train_by_solving(start(x), x, y, SETTINGS, forms(x), n_held_out=40).trained
    x_test, y_test = data(seed=1)
    mean, variance = Predictor(trained.model).moments(x_test)
    assert np.sqrt(np.mean((mean - y_test) ** 2)) < 0.14
    assert np.mean(np.abs(y_test - mean) < 1.96 * np.sqrt(variance)) == pytest.approx(0.95, abs=0.04)


def test_classes_are_learned_too():
    x, y = data(600)
    found = train_by_solving(start(x, Bernoulli()), x, (y > 0) * 1.0, SETTINGS, forms(x), n_held_out=60)
    x_test, y_test = data(seed=1)
    p = Predictor(found.trained.model).probabilities(x_test)[:, 1]
    assert np.mean((p > 0.5) == (y_test > 0)) > 0.92


def test_held_out_rows_choose_the_cheapest_and_most_careful_of_equals(monkeypatch):
    x, y = data()
    both = forms(x, (0, 32), factors=(1.0, 0.5))
    found = train_by_solving(start(x), x, y, SETTINGS, both, n_held_out=40)
    assert set(found.tried) == set(both)
    assert found.form in both
    # Landmarks are of no use for this function of one column.
    assert found.form.n_landmarks == 0
    assert found.trained.history[-1].score == found.tried[found.form]
    assert train_by_solving(start(x), x, y, SETTINGS, both[1:]).form == both[1]
    noise = 0.1 * np.random.default_rng(0).normal(size=40)
    for best, expected in ((-0.1, both[3]), (-0.19, both[1])):
        scores = iter([-0.5, -0.2, -0.5, best])
        monkeypatch.setattr(solved, "log_scores", lambda *_, s=scores: next(s) + noise)
        assert train_by_solving(start(x), x, y, SETTINGS, both, n_held_out=40).form == expected


def test_very_little_noise_must_gain_much(monkeypatch):
    x, y = data(noise=0.02)
    noise = 0.1 * np.random.default_rng(0).normal(size=40)
    least = 0.01 * np.var(y)
    for gain, expected in ((0.12, 0.0), (0.08, least)):
        scores = iter([gain, 0.0])
        monkeypatch.setattr(solved, "log_scores", lambda *_, s=scores: next(s) + noise)
        found = train_by_solving(start(x), x, y, SETTINGS, forms(x, factors=(1.0,)), n_held_out=40)
        assert found.form.least_noise == pytest.approx(expected)
        noise_found = float(found.trained.model.likelihood.noise)
        assert noise_found == pytest.approx(least) if expected else noise_found < least


def test_a_smooth_function_of_many_columns_wants_landmarks():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(1500, 6))
    y = np.sin(x @ np.array([1.0, 0.8, -0.7, 0.6, 0.5, -0.4])) + 0.3 * x[:, 0] * x[:, 1] + 0.001 * rng.normal(size=1500)
    y = (y - y.mean()) / y.std()
    model = create(x, Matern52(np.ones(6)), Gaussian(0.1), PerPoint(16), n_inducing=1000, placement="subset")
    choices = [Form(1000, 16, n, 1.0) for n in (0, 64)]
    found = train_by_solving(model, x[:1000], y[:1000], SETTINGS, choices, n_held_out=100)
    assert found.form.n_landmarks == 64
    # It has hardly any noise, and the held-out rows say so.
    assert found.form.least_noise == 0.0
    assert found.trained.model.landmarks.inputs.shape == (64, 6)
    with_landmarks = Predictor(with_precision(found.trained.model, "float64"))
    mean, variance = with_landmarks.moments(x[1000:])
    alone = train_by_solving(model, x[:1000], y[:1000], SETTINGS, choices[:1], n_held_out=100).trained.model
    mean_alone, _ = Predictor(with_precision(alone, "float64")).moments(x[1000:])
    error, error_alone = (np.sqrt(np.mean((m - y[1000:]) ** 2)) for m in (mean, mean_alone))
    assert error < 0.75 * error_alone
    assert np.mean(np.abs(y[1000:] - mean) < 1.96 * np.sqrt(variance)) > 0.93


def test_held_out_rows_have_no_part_in_hyper_parameters():
    x, y = data()
    _, held = solved.split_held_out(len(x), 0.1, SETTINGS.seed)
    spoiled = y.copy()
    spoiled[held] = 100.0
    one, other = (
        train_by_solving(start(x), x, target, SETTINGS, forms(x), n_held_out=40).trained.model
        for target in (y, spoiled)
    )
    for ours, theirs in zip(jax.tree.leaves(one.covariance), jax.tree.leaves(other.covariance), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_an_interrupted_run_keeps_a_model_and_goes_on_to_the_same_one(tmp_path, monkeypatch):
    x, y = data()
    model = start(x)
    whole = train_by_solving(model, x, y, SETTINGS, forms(x), n_held_out=40)
    path = tmp_path / "run.checkpoint"
    update = solved.ProgressBar.update

    def stop(self, report):
        update(self, report)
        raise KeyboardInterrupt

    monkeypatch.setattr(solved.ProgressBar, "update", stop)
    broken = train_by_solving(model, x, y, SETTINGS, forms(x), n_held_out=40, checkpoint=path)
    assert broken.trained.reason == "interrupted"
    assert broken.trained.steps == 64
    assert np.isfinite(Predictor(broken.trained.model).moments(x)).all()
    monkeypatch.setattr(solved.ProgressBar, "update", update)
    resumed = train_by_solving(model, x, y, SETTINGS, forms(x), n_held_out=40, checkpoint=path, resume=True)
    for one, other in zip(jax.tree.leaves(resumed.trained.model), jax.tree.leaves(whole.trained.model), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [report.step for report in resumed.trained.history] == [report.step for report in whole.trained.history]
    with pytest.raises(SettingError, match="is of another run"):
        train_by_solving(model, x, y + 1, SETTINGS, forms(x), n_held_out=40, checkpoint=path, resume=True)


def test_checkpoints_are_written_as_time_passes(tmp_path, monkeypatch):
    x, y = data(100)
    path = tmp_path / "run.checkpoint"
    monkeypatch.setattr(checkpoints, "_EVERY", 0.0)
    train_by_solving(start(x), x, y, SETTINGS, forms(x), checkpoint=path)
    assert path.exists()


def test_a_budget_of_time_ends_learning_early():
    x, y = data()
    found = train_by_solving(
        start(x), x, y, Settings(steps=10**6, batch_size=64, time_budget=2.0), forms(x), n_held_out=40
    )
    assert found.trained.reason == "time"
    assert found.trained.steps < 10**6
