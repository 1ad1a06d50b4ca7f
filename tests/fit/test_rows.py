"""Rows of q(u) that are moved when they are needed end up where Adam moves them."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from swsgp import All, Gaussian, Matern52, PerPoint, Predictor, Settings, Softmax, bound, create, train
from swsgp.fit import loop
from swsgp.fit.rows import BETA_1, EPSILON, Rows, all_rows, reach
from swsgp.fit.step import ADAM, State, begin, run_steps, split, whole_model
from swsgp.gp.variational import Diagonal

M = 7
# A short cosine, so that the rate changes while a row is not active.
SETTINGS = Settings(steps=80, learning_rate=0.05)


def dense_adam(place, gradients, rates):
    """The places before every step and after the last one, each row moved in each step."""
    first, second, places = np.zeros_like(place), np.zeros_like(place), [place]
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        place = place - rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        places.append(place)
    return np.array(places)


def q_of(place):
    return Diagonal(*jnp.split(jnp.asarray(place), 2, axis=1))


def place_of(rows):
    q = all_rows(rows)
    return np.concatenate([q.mean, q.log_std], axis=1)


def moved(rows, active, gradient, next_reach):
    moving = rows.moving(active)
    return rows.moved(active, moving, q_of(gradient), jnp.asarray(next_reach, rows.reach.dtype))


def lazy_adam(place, is_active, gradients, settings=SETTINGS):
    """The same places from rows of which each step touches the active ones alone."""
    rows = Rows.start(q_of(place), *reach(settings, 0, 1))
    places = [place_of(rows)]
    for now, gradient, after in zip(is_active, gradients, reach(settings, 1, len(gradients)), strict=True):
        active = np.flatnonzero(now)
        rows = moved(rows, jnp.asarray(active), gradient[active], after)
        places.append(place_of(rows))
    return np.array(places)


def some_gradients(rng, n_steps, chance, size=1.0):
    """Gradients of at least `size` for rows that are active by chance, and 0 for the others."""
    is_active = rng.random((n_steps, M)) < chance
    gradients = rng.choice([-1, 1], (n_steps, M, 4)) * size * rng.uniform(1, 3, (n_steps, M, 4))
    return is_active, np.where(is_active[:, :, None], gradients, 0.0)


def test_rows_that_are_always_active_move_as_in_adam(float64, rng):
    place = rng.normal(size=(M, 4))
    is_active, gradients = some_gradients(rng, 80, chance=1.1)
    expected = dense_adam(place, gradients, SETTINGS.rates(0, 80))
    np.testing.assert_allclose(lazy_adam(place, is_active, gradients), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-5])
def test_rows_that_were_not_active_are_where_adam_has_moved_them(float64, rng, size):
    """The motion between two steps in which a row is active is off by at most 2ε/√v̂ of itself, as the module says.

    √v̂, a mean of gradients with the zeros between them, is here at least a tenth of `size`; a row moves by no more than
    4 times the rate in a step.
    """
    place = rng.normal(size=(M, 4))
    is_active, gradients = some_gradients(rng, 80, chance=0.15, size=size)
    rates = SETTINGS.rates(0, 80)
    expected = dense_adam(place, gradients, rates)
    bound_of_error = 2 * EPSILON / (0.1 * size) * 4 * rates.sum()
    error = np.abs(lazy_adam(place, is_active, gradients) - expected).max()
    assert error < bound_of_error + 1e-12
    still = np.where(is_active[:, :, None], np.diff(expected, axis=0), 0.0).sum(0)
    assert np.abs(expected[-1] - place - still).max() > 0.1, "little moves while it is not active"


def test_a_rate_that_is_lowered_on_the_way_lowers_what_is_left_of_the_motion(float64, rng):
    place = rng.normal(size=(M, 4))
    is_active, gradients = some_gradients(rng, 40, chance=0.3)
    rates = SETTINGS.rates(0, 40)
    expected = dense_adam(place, gradients, np.where(np.arange(40) < 20, rates, 0.25 * rates))
    rows = Rows.start(q_of(place), *reach(SETTINGS, 0, 1))
    factor = 1.0
    for i in range(40):
        if i == 20:
            factor, before = 0.25, place_of(rows)
            rows = rows.slowed(0.25)
            np.testing.assert_allclose(place_of(rows), before, rtol=1e-12)
        active = np.flatnonzero(is_active[i])
        rows = moved(rows, jnp.asarray(active), gradients[i, active], factor * reach(SETTINGS, i + 1, 1)[0])
    np.testing.assert_allclose(place_of(rows), expected[-1], rtol=1e-6)


def test_a_row_that_was_not_active_for_a_million_steps_is_at_rest(rng):
    settings = Settings(steps=10**9, schedule="constant")
    place = rng.normal(size=(M, 2)).astype(np.float32)
    rows = Rows.start(q_of(place), *reach(settings, 0, 1))
    rows = moved(rows, jnp.arange(M), np.ones((M, 2), np.float32), reach(settings, 1, 1)[0])
    later = eqx.tree_at(lambda r: r.step, rows, rows.step + 10**6)
    np.testing.assert_array_equal(place_of(later), rows.packed[:, :2])
    again = moved(later, jnp.arange(M), np.ones((M, 2), np.float32), reach(settings, 10**6 + 1, 1)[0])
    assert np.isfinite(place_of(again)).all()


def test_momentum_builds_up_after_very_many_steps_as_after_a_few(rng):
    """In float32, which has no odd numbers beyond 2²⁴."""
    settings = Settings(steps=10**9, schedule="constant")
    found = []
    for start in (1000, (1 << 24) + 3, 10**9):
        rows = Rows.start(q_of(np.zeros((M, 2), np.float32)), *reach(settings, 0, 1))
        rows = eqx.tree_at(lambda r: r.step, rows, rows.step + start)
        for i in range(10):
            rows = moved(rows, jnp.arange(M), np.ones((M, 2), np.float32), reach(settings, start + i + 1, 1)[0])
        found.append(rows.moving(jnp.arange(M)).first)
    np.testing.assert_allclose(found[0], 0.9 * (1 - 0.9**10), rtol=1e-4)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def test_the_reach_of_a_step_is_the_same_number_wherever_a_dispatch_begins():
    whole = reach(SETTINGS, 0, 64)
    for first, n_steps in ((0, 1), (1, 1), (5, 13), (37, 27)):
        np.testing.assert_array_equal(reach(SETTINGS, first, n_steps), whole[first : first + n_steps])


def problem(likelihood=None, n=60, n_inducing=12, precision="float64", **options):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(n, 2))
    f = np.sin(3 * x[:, 0]) + 0.1 * rng.normal(size=n)
    likelihood = likelihood or Gaussian(0.1)
    y = np.digitize(f, [-0.4, 0.4]).astype(float) if isinstance(likelihood, Softmax) else f
    # Not at rows: an inducing point at a row leaves others near it gradients as small as the jitter.
    options = {"placement": rng.uniform(-2, 2, size=(n_inducing, 2)), "precision": precision, **options}
    options["n_inducing"] = n_inducing
    return create(x, Matern52(np.ones(2)), likelihood, PerPoint(4), **options), x, y


def program(model, x, y, settings):
    """The arguments of `run_steps` for the first step of a run."""
    state, fixed = begin(model, settings)
    neighbours = None if settings.learn_inducing else model.active_set(jnp.asarray(x))
    batches = jnp.arange(settings.batch_size, dtype=jnp.int32)[None]
    dtype = model.inducing.dtype
    pace = (jnp.asarray(part, dtype) for part in (settings.rates(0, 1), reach(settings, 1, 1)))
    numbers = jnp.asarray(1, jnp.int32), jnp.asarray(len(x), dtype), jnp.asarray(settings.kl_scale, dtype)
    return state, fixed, jnp.asarray(x, dtype), jnp.asarray(y, dtype), neighbours, batches, *pace, *numbers


@pytest.mark.parametrize("likelihood", [Gaussian(0.1), Softmax(3)])
def test_gradients_of_an_inducing_point_that_is_active_for_several_rows_add_up(float64, likelihood):
    model, x, y = problem(likelihood)
    arguments = program(model, x, y, Settings(batch_size=30, kl_scale=2.0))
    index = arguments[4][:30]
    assert np.bincount(np.ravel(index)).max() > 4, "no inducing point is active for several rows"

    def loss(q):
        dense = eqx.tree_at(lambda m: m.variational, model, q)
        return -bound(dense, jnp.asarray(x[:30]), jnp.asarray(y[:30]), index, 60, 2.0) / 60

    expected = jax.grad(loss)(model.variational)
    rows = run_steps(*arguments).state.rows
    n = 2 * likelihood.n_latent
    gradient = np.asarray(rows.packed[:, n : 2 * n]) / (1 - BETA_1)
    np.testing.assert_allclose(gradient, np.concatenate([expected.mean, expected.log_std], axis=1), rtol=1e-9)
    np.testing.assert_array_equal(rows.packed[:, 3 * n : 4 * n], 0.0)


def begin_dense(model, settings):
    learned, fixed = split(model, settings.learn_inducing, settings.learn_hyperparameters)
    return State(learned, ADAM.init(learned)), fixed


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({}, {}),
        ({"likelihood": Softmax(3)}, {"kl_scale": 3.0}),
        ({"offset": np.array([0.2])}, {"schedule": "constant"}),
        ({"nearest_by": Matern52([1.0, 2.0])}, {"learn_hyperparameters": False}),
    ],
)
def test_training_reaches_the_model_of_dense_adam(monkeypatch, options, changes):
    """Of 40 rows of q(u) a mini-batch uses 16 at most."""
    model, x, y = problem(n_inducing=40, **options)
    settings = Settings(**{"steps": 200, "batch_size": 4, "learning_rate": 0.02, **changes})
    ours = train(model, x, y, settings, n_data=100)
    monkeypatch.setattr(loop, "begin", begin_dense)
    dense = train(model, x, y, settings, n_data=100)
    for a, b in zip(jax.tree.leaves(ours.model), jax.tree.leaves(dense.model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for a, b in zip(Predictor(ours.model).latent(x), Predictor(dense.model).latent(x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert not np.allclose(ours.model.variational.mean, model.variational.mean, atol=0.01)


def test_only_a_diagonal_s_of_points_with_a_table_is_trained_by_rows():
    model, *_ = problem(precision="float32")
    state, fixed = begin(model, Settings())
    assert state.rows is not None
    for ours, expected in zip(jax.tree.leaves(whole_model(state, fixed)), jax.tree.leaves(model), strict=True):
        np.testing.assert_array_equal(ours, expected)
    assert begin(model, Settings(learn_inducing=True))[0].rows is None
    assert begin(problem(precision="float32", covariance_form="full")[0], Settings())[0].rows is None
    everything = create(np.zeros((9, 1)) + np.arange(9)[:, None], Matern52(), Gaussian(), All(), n_inducing=5)
    assert begin(everything, Settings())[0].rows is None


def made_in_a_loop(jaxpr, size, inside=False):
    """Names of operations inside loops whose results have an axis of this size."""
    names = set()
    for eqn in jaxpr.eqns:
        parts = [part for part in jax.tree.leaves(list(eqn.params.values())) if hasattr(part, "jaxpr")]
        for part in parts:
            names |= made_in_a_loop(part.jaxpr, size, inside or eqn.primitive.name == "while")
        if inside and not parts and any(size in getattr(out.aval, "shape", ()) for out in eqn.outvars):
            names.add(eqn.primitive.name)
    return names


def copied_in_a_loop(program_text, size):
    """Copies of arrays whose first axis has this size, but for those before and after the loop."""
    loops = program_text.split("\nENTRY ")[0]
    return re.findall(rf"= \w+\[{size}[,\]]\S* copy(?:-start)?\(", loops)


# A prime that is no other size here.
ODD_SIZE = 1009


def test_a_step_does_nothing_to_all_rows_but_write_the_active_ones():
    """Neither in the program as written nor as compiled, where a write before a read would be a copy in each step."""
    model, x, y = problem(n=1200, n_inducing=ODD_SIZE, precision="float32")
    arguments = program(model, x, y, Settings(batch_size=16))
    steps = jax.jit(run_steps.__wrapped__)
    traced = steps.trace(*arguments)
    assert made_in_a_loop(traced.jaxpr.jaxpr, ODD_SIZE) == {"scatter", "scatter-add"}
    text = traced.lower().compile().as_text()
    assert f"f32[{ODD_SIZE},10]" in text.split("\nENTRY ")[0]
    assert copied_in_a_loop(text, ODD_SIZE) == []


def test_the_look_for_work_on_all_rows_finds_that_of_dense_adam():
    model, x, y = problem(n=1200, n_inducing=ODD_SIZE, precision="float32")
    arguments = program(model, x, y, Settings(batch_size=16))
    dense = (*begin_dense(model, Settings()), *arguments[2:])
    names = made_in_a_loop(jax.jit(run_steps.__wrapped__).trace(*dense).jaxpr.jaxpr, ODD_SIZE)
    assert names >= {"mul", "sqrt", "div"}
