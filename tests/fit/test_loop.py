"""Training: that it learns, stops, repeats itself, and survives bad steps."""

import time
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from sklearn.datasets import load_digits
from sklearn.linear_model import LinearRegression, LogisticRegression

from swsgp import (
    All,
    Bernoulli,
    Constant,
    Gaussian,
    Linear,
    Matern32,
    Matern52,
    PerPoint,
    Poisson,
    Predictor,
    Scaling,
    Settings,
    Softmax,
    StudentT,
    Union,
    bound,
    create,
    load_set,
    train,
)
from swsgp.errors import DataError, FitWarning, SettingError
from swsgp.fit import loop
from swsgp.fit.progress import ProgressBar
from swsgp.fit.sources import InMemory
from swsgp.fit.stopping import Report
from swsgp.metrics import class_nll, gaussian_nll, rmse

QUICK = Settings(steps=40, batch_size=16, learning_rate=0.02)


def wave(n=200, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, size=(n, 1))
    return x, np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=n)


def model_for(x, active=None, likelihood=None, **options):
    active = active or PerPoint(4)
    return create(x, Matern52(0.7), likelihood or Gaussian(0.1), active, **{"n_inducing": 20, **options})


def leaves(model):
    return jax.tree.leaves(eqx.filter(model, eqx.is_array))


@pytest.mark.parametrize("active", [PerPoint(4), Union(16, 4), All()])
@pytest.mark.parametrize("form", ["diag", "full"])
@pytest.mark.parametrize("learn_inducing", [False, True])
def test_every_system_learns_a_wave(active, form, learn_inducing):
    x, y = wave()
    settings = Settings(steps=400, batch_size=32, learning_rate=0.03, learn_inducing=learn_inducing)
    model = model_for(x, active, covariance_form=form)
    trained = train(model, x, y, settings)
    assert trained.reason == "steps"
    assert trained.steps == 400
    assert rmse(y, Predictor(trained.model).moments(x)[0]) < 0.2
    moved = not np.allclose(trained.model.inducing, model.inducing)
    assert moved == learn_inducing


@pytest.mark.parametrize("likelihood", [StudentT(), Bernoulli(), Bernoulli("logit"), Softmax(3), Poisson()])
def test_every_likelihood_gains_on_its_start(likelihood):
    x, f = wave()
    y = {"StudentT": f, "Bernoulli": f > 0, "Softmax": np.digitize(f, [-0.4, 0.4]), "Poisson": np.round(np.exp(f))}[
        type(likelihood).__name__
    ].astype(float)
    model = model_for(x, likelihood=likelihood)
    trained = train(model, x, y, Settings(steps=300, batch_size=32, learning_rate=0.03))
    before, after = (Predictor(m).log_density(x, y).mean() for m in (model, trained.model))
    assert after > before + 0.15


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_same_seed_gives_the_same_model_and_another_seed_another(precision):
    x, y = wave()
    model = model_for(x, precision=precision)
    one, same = (train(model, x, y, QUICK).model for _ in range(2))
    for a, b in zip(leaves(one), leaves(same), strict=True):
        np.testing.assert_array_equal(a, b)
    other = train(model, x, y, Settings(steps=40, batch_size=16, learning_rate=0.02, seed=1)).model
    assert any(not np.array_equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))
    assert one.precision == precision


def test_the_number_of_steps_in_a_dispatch_does_not_change_the_result(monkeypatch):
    x, y = wave()
    model = model_for(x)
    whole = train(model, x, y, QUICK).model
    monkeypatch.setattr(loop, "_MAX_CHUNK", 16)
    monkeypatch.setattr(loop, "_CHUNK_SECONDS", 0.0)
    for a, b in zip(leaves(whole), leaves(train(model, x, y, QUICK).model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("n", "batch_size"), [(1, 8), (5, 64)], ids=["one row", "fewer rows than a batch"])
@pytest.mark.parametrize("active", [PerPoint(1), Union(1, 1), All()])
def test_tiny_tables_train(n, batch_size, active):
    x, y = wave(n)
    model = create(x, Matern52(1.0), Gaussian(), active, n_inducing=1, placement="subset")
    trained = train(model, x, y, Settings(steps=20, batch_size=batch_size))
    assert all(np.isfinite(leaf).all() for leaf in leaves(trained.model))


def test_a_constant_column_repeated_rows_and_a_constant_target_do_no_harm():
    x, _ = wave(60)
    x = np.column_stack([np.tile(x[:30, 0], 2), np.full(60, 7.0)])
    model = create(x, Matern32([1.0, 1.0]) + Constant() * Linear(0.1), Gaussian(), PerPoint(5), n_inducing=40)
    trained = train(model, x, np.full(60, 3.0), Settings(steps=600, learning_rate=0.05))
    np.testing.assert_allclose(Predictor(trained.model).moments(x)[0], 3.0, atol=0.5)


def test_many_columns_train(rng):
    x = rng.normal(size=(64, 784))
    model = create(x, Matern52(28.0), Bernoulli(), PerPoint(4), n_inducing=16, covariance_form="full")
    trained = train(model, x, (x[:, 0] > 0).astype(float), Settings(steps=10, batch_size=16, learn_inducing=True))
    assert np.isfinite(trained.history[-1].bound)


def test_the_bound_reported_is_that_of_algorithm_1_per_row(float64):
    """One step over all rows at a rate of nearly nothing reports the bound of the model that went in."""
    x, y = wave(50)
    model = model_for(x, precision="float64")
    settings = Settings(steps=1, batch_size=50, learning_rate=1e-12, kl_scale=2.0)
    reported = train(model, x, y, settings).history[0].bound
    expected = bound(model, jnp.asarray(x), jnp.asarray(y), model.active_set(jnp.asarray(x)), 50, 2.0) / 50
    np.testing.assert_allclose(reported, expected, rtol=1e-9)


def test_tables_of_about_the_same_length_share_a_compiled_program():
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
    )
    model = model_for(wave(200)[0])
    for n, steps, seed in [(200, 40, 0), (195, 55, 1), (207, 30, 2)]:
        before = len(compiled)
        trained = train(model, *wave(n), Settings(steps=steps, batch_size=19, seed=seed, kl_scale=1.0 + seed))
        assert trained.steps == steps
        if n == 200:
            assert len(compiled) > before, "nothing is counted"
        else:
            assert len(compiled) == before


def test_dispatches_grow_however_long_one_takes_that_does_nothing(monkeypatch):
    """As copying the state does, where it is large."""
    steps = loop.run_steps

    def slow(*arguments):
        time.sleep(0.1)
        return steps(*arguments)

    monkeypatch.setattr(loop, "run_steps", slow)
    monkeypatch.setattr(loop, "_CHUNK_SECONDS", 0.01)
    x, y = wave()
    trained = train(model_for(x), x, y, Settings(steps=2000))
    assert max(np.diff([report.step for report in trained.history])) >= 256


def test_training_stops_when_the_time_is_up():
    x, y = wave()
    trained = train(model_for(x), x, y, Settings(steps=10**9, time_budget=2.0))
    assert trained.reason == "time"
    assert 0 < trained.steps < 10**9


def test_training_stops_when_held_out_rows_see_no_more_gain_and_keeps_the_best():
    x, y = wave(60)
    x_held, y_held = wave(100, seed=1)
    scores = []
    trained = train(
        model_for(x),
        x,
        y,
        Settings(steps=20_000, batch_size=16, learning_rate=0.05, schedule="constant", evaluate_every=50, patience=3),
        held_out=(x_held, y_held),
        callback=lambda report, _: scores.append(report.score) if report.score is not None else None,
    )
    assert trained.reason == "patience"
    assert trained.steps < 20_000
    final = Predictor(trained.model).log_density(x_held, y_held).mean()
    np.testing.assert_allclose(final, max(scores), rtol=1e-5)
    assert scores[-1] < max(scores)


def test_a_callback_sees_progress_and_can_end_the_training():
    x, y = wave()
    seen = []

    def callback(report, model):
        seen.append(report)
        return report.step >= 20

    trained = train(model_for(x), x, y, Settings(steps=5000), callback=callback)
    assert trained.reason == "callback"
    assert [report.step for report in seen] == sorted(report.step for report in seen)
    assert all(np.isfinite(report.bound) and report.seconds > 0 for report in seen)


def test_the_time_of_a_callback_is_not_counted():
    x, y = wave()
    slept = []
    started = time.monotonic()
    trained = train(model_for(x), x, y, Settings(steps=40), callback=lambda *_: slept.append(time.sleep(0.1)))
    assert trained.seconds + 0.1 * len(slept) <= time.monotonic() - started


def test_progress_of_a_run_that_the_clock_ends_counts_seconds_not_steps(capsys):
    bar = ProgressBar(10**9, True, 60.0, Console(stderr=True))
    lines = []
    for report in (Report(1, 5.0, 0.1), Report(501, 15.0, 0.1)):
        bar._last_line = -np.inf
        bar.update(report)
        lines.append(capsys.readouterr().err)
    assert lines == [
        "step 1 · objective 0.1000 · 55 s left\n",
        "step 501 · 50 steps/s · objective 0.1000 · 45 s left\n",
    ]


def test_time_left_goes_by_the_steps_after_the_first_which_compiles(capsys):
    bar = ProgressBar(1_001, True, console=Console(stderr=True))
    lines = []
    for report in (Report(1, 5.0, 0.1), Report(501, 10.0, 0.1)):
        bar._last_line = -np.inf
        bar.update(report)
        lines.append(capsys.readouterr().err)
    assert lines == [
        "step 1 of 1,001 · objective 0.1000\n",
        "step 501 of 1,001 · 100 steps/s · objective 0.1000 · 5 s left\n",
    ]


def test_a_step_that_is_not_finite_is_taken_back_and_said_once():
    """In float32 with hardly any jitter, equal inducing inputs have no factor; training must find its way out."""
    x, y = wave()
    model = model_for(x, placement=np.zeros((20, 1)), jitter=1e-10)
    with pytest.warns(FitWarning, match="goes on from the last good state") as warned:
        trained = train(model, x, y, QUICK)
    assert len(warned) == 1
    assert trained.reason == "steps"
    assert float(trained.model.jitter) > 1e-10
    assert all(np.isfinite(leaf).all() for leaf in leaves(trained.model))
    assert np.isfinite(Predictor(trained.model).moments(x)[0]).all()


def test_a_run_that_cannot_be_saved_gives_back_the_last_good_model():
    x, _ = wave()
    model = model_for(x, likelihood=Poisson())
    absurd = eqx.tree_at(lambda m: m.variational.mean, model, jnp.full((20, 1), 1e4))
    with pytest.warns(FitWarning):
        trained = train(absurd, x, np.ones(len(x)), QUICK)
    assert trained.reason == "not finite"
    assert trained.steps == 0
    for a, b in zip(leaves(absurd), leaves(trained.model), strict=True):
        np.testing.assert_array_equal(a, b)


class Spoilt(Gaussian):
    """The gradient of rows with large y is no number, though their value is."""

    def expected_log_prob(self, y, mean, variance):
        return super().expected_log_prob(y, mean, variance) + jnp.sqrt(jnp.where(y > 9, 0.0, 1.0) + 0.0 * mean[0])


def test_a_gradient_that_spoils_rows_which_no_bound_looks_at_is_taken_back(monkeypatch):
    """The inducing variables of one row are its own: for hundreds of steps all bounds are finite."""
    monkeypatch.setattr(loop, "_CHUNK_SECONDS", 60.0)
    x, y = wave(40_000)
    x, y = np.append(x, [[50.0]], axis=0), np.append(y, 10.0)
    places = np.append(np.linspace(-3, 3, 16), [49.0, 50.0, 51.0, 52.0])[:, None]
    model = model_for(x, likelihood=Spoilt(0.1), placement=places, covariance_form="full")
    pace = {"steps": 1009, "batch_size": 16, "learning_rate": 0.02}
    settings = Settings(**pace, learn_inducing=True, learn_hyperparameters=False)
    with pytest.warns(FitWarning, match="goes on from the last good state"):
        trained = train(model, x, y, settings)
    assert trained.reason == "not finite"
    assert 497 < trained.steps < 900
    assert all(np.isfinite(leaf).all() for leaf in leaves(trained.model))


def test_the_way_back_goes_through_every_change_of_jitter_and_rate():
    """After one bad step another, from which it takes a second try: the first is not passed again as it was."""
    x, y = wave()
    source = InMemory(x.astype("float32"), y.astype("float32"), 16, 0, None)
    settings = Settings(steps=1000, batch_size=16, learning_rate=0.02, learn_inducing=True)
    run = loop._Run(model_for(x), source, settings, None, None, None, len(x))
    run.chunk = 16
    for step in (70, 100):
        run._move(run._state_after(run.now, step - run.now.step), step)
    with pytest.warns(FitWarning):
        run._step_back(130)
    changed = run.now
    assert (changed.step, changed.rate_factor) == (129, 0.5)
    for _ in range(2):
        run._step_back(160)
    assert (run.now.step, run.now.rate_factor) == (158, 0.125)
    for a, b in zip(leaves(run.now.state), leaves(run._state_after(changed, 29)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("likelihood", [Gaussian(0.1), Poisson()])
@pytest.mark.parametrize("rate", [10.0, 50.0, 1e4])
def test_a_rate_that_is_far_too_high_does_not_spoil_the_model(likelihood, rate):
    """Training finds a rate that works, and what comes back has a finite bound on every batch, and predicts."""
    x, y = wave()
    y = y if isinstance(likelihood, Gaussian) else np.round(np.exp(y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        trained = train(model_for(x, likelihood=likelihood), x, y, Settings(steps=60, learning_rate=rate))
    assert all(np.isfinite(leaf).all() for leaf in leaves(trained.model))
    assert all(np.isfinite(report.bound) for report in trained.history)
    assert np.isfinite(Predictor(trained.model).latent(x)[0]).all()
    assert float(trained.model.jitter) <= 0.01


def test_where_dispatches_begin_does_not_change_a_run_that_had_to_step_back(monkeypatch):
    x, y = wave()
    model = model_for(x, placement=np.zeros((20, 1)), jitter=1e-10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        whole = train(model, x, y, QUICK).model
        monkeypatch.setattr(loop, "_CHUNK_SECONDS", 0.0)
        for a, b in zip(leaves(whole), leaves(train(model, x, y, QUICK).model), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_run_cut_short_still_scores_its_last_model():
    x, y = wave()
    settings = Settings(steps=5000, evaluate_every=1000)
    trained = train(
        model_for(x), x, y, settings, held_out=wave(50, seed=1), callback=lambda report, _: report.step >= 100
    )
    start = Predictor(model_for(x)).log_density(*wave(50, seed=1)).mean()
    assert Predictor(trained.model).log_density(*wave(50, seed=1)).mean() > start


def test_patience_without_held_out_rows_is_refused():
    x, y = wave()
    with pytest.raises(SettingError, match="give held_out"):
        train(model_for(x), x, y, Settings(patience=3))


def test_a_callback_runs_in_the_callers_own_precision():
    x, y = wave()
    seen = []
    train(
        model_for(x, precision="float64"),
        x,
        y,
        Settings(steps=3),
        callback=lambda *_: seen.append(jnp.ones(1).dtype) or None,
    )
    assert set(seen) == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.full((20, 1), np.nan), np.zeros(20), "20 NaN or infinite values in column 0"),
        (np.zeros((20, 2)), np.zeros(20), "must have 1 columns"),
        (np.zeros((20, 1)), np.zeros(19), "as many rows, got 20 and 19"),
        (np.zeros(20), np.zeros(20), r"use x\[:, None\]"),
        (np.zeros((0, 1)), np.zeros(0), "at least one row"),
        (np.array([["a"]] * 20), np.zeros(20), "must be numbers"),
        (np.zeros((20, 1)), np.full(20, np.inf), "target must be finite"),
        (np.full((20, 1), 1e300), np.zeros(20), "too large for float32"),
    ],
)
def test_data_that_cannot_be_used_are_refused_before_training(x, y, message):
    model = model_for(wave()[0])
    with pytest.raises(DataError, match=message):
        train(model, x, y, QUICK)


def test_labels_that_the_likelihood_cannot_take_are_refused_before_training():
    x, y = wave()
    with pytest.raises(DataError, match="needs labels among 0"):
        train(model_for(x, likelihood=Bernoulli()), x, y, QUICK)
    with pytest.raises(DataError, match="needs counts"):
        train(model_for(x, likelihood=Poisson()), x, np.ones(200), QUICK, held_out=(x, -np.ones(200)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be a whole number"),
        ({"batch_size": -1}, "batch_size"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"kl_scale": float("nan")}, "kl_scale"),
        ({"time_budget": -1.0}, "time_budget"),
        ({"schedule": "linear"}, "schedule must be"),
        ({"patience": 0}, "patience"),
        ({"seed": -1}, "seed must be a whole number, 0 or more"),
    ],
)
def test_settings_out_of_range_are_refused(changes, message):
    with pytest.raises(SettingError, match=message):
        Settings(**changes)


def test_the_paper_preset_is_the_papers():
    paper = Settings.paper()
    assert (paper.learning_rate, paper.batch_size, paper.kl_scale) == (0.001, 64, 1.0)
    assert (paper.steps, paper.schedule, paper.learn_inducing) == (300_000, "constant", True)
    assert Settings.paper(steps=10).steps == 10


def test_progress_lines_are_printed_where_there_is_no_terminal(capsys):
    x, y = wave()
    train(model_for(x), x, y, Settings(steps=30, progress=True, evaluate_every=30), held_out=wave(20, seed=1))
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("step 30 of 30 · ")
    assert "steps/s" in line
    assert "objective" in line
    assert "held-out" in line


def quarter_held_out(n):
    order = np.random.default_rng(0).permutation(n)
    return order[n // 4 :], order[: n // 4]


def test_on_odd_and_even_digits_it_beats_the_base_rate_and_logistic_regression_by_far():
    """Real images that come with scikit-learn; log-likelihoods on a quarter held out."""
    images, digits = load_digits(return_X_y=True)
    x, odd = images / 16.0, (digits % 2).astype(float)
    rows, test = quarter_held_out(len(x))
    model = create(x[rows], Matern52(4.0), Bernoulli(), PerPoint(8), n_inducing=64, covariance_form="full")
    settings = Settings(steps=800, batch_size=64, learning_rate=0.02, learn_inducing=True)
    trained = train(model, x[rows], odd[rows], settings)
    nll = class_nll(odd[test], Predictor(trained.model).probabilities(x[test]))
    logistic = LogisticRegression(max_iter=1000).fit(x[rows], odd[rows])
    rate = odd[rows].mean()
    assert nll < class_nll(odd[test], np.tile([1 - rate, rate], (len(test), 1))) - 0.5
    assert nll < class_nll(odd[test], logistic.predict_proba(x[test])) - 0.1


def test_on_powerplant_it_beats_the_mean_and_the_linear_model(data_folder):
    data = load_set("powerplant")
    rows, test = quarter_held_out(len(data.x))
    x, y = Scaling.of(data.x[rows]).apply(data.x), Scaling.of(data.y[rows]).apply(data.y)
    model = create(x[rows], Matern52(np.ones(4)), Gaussian(), PerPoint(8), n_inducing=256, placement="subset")
    trained = train(model, x[rows], y[rows], Settings(steps=2000, batch_size=128))
    nll = -Predictor(trained.model).log_density(x[test], y[test]).mean()

    def constant_variance_nll(fitted, predicted):
        return gaussian_nll(y[test], predicted, np.full(len(test), np.var(y[rows] - fitted)))

    linear = LinearRegression().fit(x[rows], y[rows])
    assert nll < constant_variance_nll(y[rows].mean(), np.full(len(test), y[rows].mean())) - 1.3
    assert nll < constant_variance_nll(linear.predict(x[rows]), linear.predict(x[test])) - 0.05
