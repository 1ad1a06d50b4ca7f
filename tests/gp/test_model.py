"""The bound: against the oracle, against the limits it must have, and its mini-batch estimates."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from models import JITTER, LENGTHSCALE, NOISE, VARIANCE, D, H, M, N, dense_q_u, estimate, make, toy, with_full_q_u
from tolerances import EXACT, TOLERANCE

from swsgp import (
    All,
    Bernoulli,
    Columns,
    Constant,
    Gaussian,
    Linear,
    Matern32,
    Matern52,
    PerPoint,
    Predictor,
    Softmax,
    Union,
    bound,
    create,
)
from swsgp.errors import DataError, SettingError


@pytest.mark.parametrize("form", ["diag", "full"])
@pytest.mark.parametrize(("n_inducing", "n_neighbors"), [(1, 1), (7, 1), (7, 3), (7, 7)])
@pytest.mark.parametrize("kl_scale", [1.0, 2.5])
def test_bound_equals_algorithm_1_in_numpy(float64, rng, form, n_inducing, n_neighbors, kl_scale):
    x, y = toy(rng)
    model = make(x, PerPoint(n_neighbors), form, n_inducing)
    mean, cov = dense_q_u(model)
    z = np.asarray(model.inducing)
    expected = oracle.bound(x[:5], y[:5], z, mean, cov, LENGTHSCALE, VARIANCE, NOISE, n_neighbors, N, JITTER, kl_scale)
    np.testing.assert_allclose(estimate(model, x[:5], y[:5], N, kl_scale), expected, **EXACT)


@pytest.mark.parametrize("active", [PerPoint(H), Union(4, 2), All()])
@pytest.mark.parametrize("form", ["diag", "full"])
def test_gradient_of_the_bound_equals_finite_differences_in_every_parameter(float64, rng, active, form):
    x, y = toy(rng, 6)
    model = make(x, active, form, n_inducing=5)
    index = model.active_set(jnp.asarray(x))
    leaves, structure = jax.tree.flatten(eqx.filter(model, eqx.is_inexact_array))
    static = eqx.filter(model, eqx.is_inexact_array, inverse=True)

    def value(leaves):
        combined = eqx.combine(structure.unflatten(leaves), static)
        return bound(combined, jnp.asarray(x), jnp.asarray(y), index, 20)

    value = jax.jit(value)
    gradients = jax.grad(value)(leaves)
    for i, gradient in enumerate(gradients):
        # Of the packed triangle, a few entries of the used part speak for the rest.
        picked = [(0, 0, j) for j in range(0, 10, 3)] if leaves[i].size > 20 else list(np.ndindex(leaves[i].shape))
        for entry in picked:

            def moved(step, i=i, entry=entry):
                return value([leaf.at[entry].add(step) if j == i else leaf for j, leaf in enumerate(leaves)])

            expected = (moved(1e-5) - moved(-1e-5)) / 2e-5
            if leaves[i] is model.jitter:
                continue
            np.testing.assert_allclose(gradient[entry], expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("form", ["diag", "full"])
@pytest.mark.parametrize("likelihood", [Gaussian(NOISE), Bernoulli(), Softmax(3)])
def test_with_all_neighbours_per_point_equals_all_in_value_and_gradient(float64, rng, form, likelihood):
    x, y = toy(rng)
    y = y if isinstance(likelihood, Gaussian) else (y > 0).astype(float)
    per_point, everything = (
        make(x, PerPoint(M), form, likelihood=likelihood),
        make(x, All(), form, likelihood=likelihood),
    )
    results = [eqx.filter_value_and_grad(estimate)(model, x, y, 50) for model in (per_point, everything)]
    for one, other in zip(*(jax.tree.leaves(result) for result in results), strict=True):
        np.testing.assert_allclose(one, other, **EXACT)


def test_with_all_neighbours_a_full_s_needs_no_factor_in_float32(rng):
    """Its root is known, and factors of it may fail."""
    x = rng.normal(size=(8, 2)).astype(np.float32)
    values = []
    for active in (PerPoint(8), All()):
        model = make(x, active, n_inducing=8, precision="float32")
        steep = jnp.full((8, 1), np.log(1e-6)), jnp.ones_like(model.variational.lower)
        model = eqx.tree_at(lambda m: (m.variational.log_diagonal, m.variational.lower), model, steep)
        values.append(float(estimate(model, x, x[:, 0])))
    assert np.isfinite(values[0])
    np.testing.assert_allclose(*values, rtol=1e-3)


@pytest.mark.parametrize("form", ["diag", "full"])
def test_union_of_all_equals_all(float64, rng, form):
    x, y = toy(rng)
    union, everything = make(x, Union(M, M), form), make(x, All(), form)
    np.testing.assert_allclose(estimate(union, x, y), estimate(everything, x, y), **EXACT)


def test_bound_with_the_best_q_u_and_all_neighbours_equals_titsias(float64, rng):
    x, y = toy(rng, 30)
    model = make(x, PerPoint(M), "full")
    z = np.asarray(model.inducing)
    mean, cov = oracle.best_q_u(x, y, z, LENGTHSCALE, VARIANCE, NOISE, JITTER)
    best = with_full_q_u(model, mean, cov)
    expected = oracle.titsias(x, y, z, LENGTHSCALE, VARIANCE, NOISE, JITTER)
    np.testing.assert_allclose(estimate(best, x, y), expected, rtol=1e-6)
    assert estimate(model, x, y) < expected


@pytest.mark.parametrize("active", [PerPoint(H), All()])
def test_mini_batch_estimates_average_to_the_full_objective(float64, rng, active):
    x, y = toy(rng, 6)
    model = make(x, active, n_inducing=5)
    full = estimate(model, x, y)
    batches = list(itertools.combinations(range(6), 2))
    average = np.mean([estimate(model, x[list(rows)], y[list(rows)], 6) for rows in batches])
    np.testing.assert_allclose(average, full, **EXACT)


def test_union_estimates_average_to_their_expectation_over_batches(float64, rng):
    """Each batch has a w of its own: the objective is the mean over batches of what the oracle says for that w."""
    x, y = toy(rng, 6)
    n_inducing = 5
    model = make(x, Union(3, 2), n_inducing=n_inducing)
    z = np.asarray(model.inducing)
    mean, cov = dense_q_u(model)
    ours, expected = [], []
    for rows in map(list, itertools.combinations(range(6), 2)):
        ours.append(estimate(model, x[rows], y[rows], 6))
        ranked = [list(oracle.nearest(point, z, LENGTHSCALE, n_inducing)) for point in x[rows]]
        # The set: first choices of both points, then second choices, the earlier row first within a rank.
        turns = {j: min((order.index(j), row) for row, order in enumerate(ranked)) for j in range(n_inducing)}
        w = sorted(turns, key=turns.get)[:3]
        k_zz = oracle.matern52(z[w], z[w], LENGTHSCALE, VARIANCE) + JITTER * VARIANCE * np.eye(3)
        cov_w = cov[np.ix_(w, w)]
        ell = 0.0
        for i in rows:
            k_zx = oracle.matern52(z[w], x[i : i + 1], LENGTHSCALE, VARIANCE)[:, 0]
            ell += oracle.gaussian_expected_log_prob(y[i], *oracle.q_f(k_zz, k_zx, VARIANCE, mean[w], cov_w), NOISE)
        expected.append(3 * ell - oracle.kl(k_zz, mean[w], cov_w))
    np.testing.assert_allclose(ours, expected, **EXACT)
    np.testing.assert_allclose(np.mean(ours), np.mean(expected), **EXACT)


def test_relabelling_the_inducing_points_changes_nothing(float64, rng):
    x, y = toy(rng)
    model = make(x, PerPoint(H), "diag")
    order = rng.permutation(M)
    relabelled = eqx.tree_at(
        lambda m: (m.inducing, m.variational.mean, m.variational.log_std),
        model,
        (model.inducing[order], model.variational.mean[order], model.variational.log_std[order]),
    )
    np.testing.assert_allclose(estimate(relabelled, x, y), estimate(model, x, y), **EXACT)
    for one, other in zip(Predictor(relabelled).moments(x), Predictor(model).moments(x), strict=True):
        np.testing.assert_allclose(one, other, **EXACT)


def test_the_prior_over_f_does_not_depend_on_the_active_set(float64, rng):
    """With q(u) set to the prior, q(f) must be the prior whatever w is: the paper's figure, as moments."""
    x = rng.normal(size=(9, D))
    model = make(x, All(), "full")
    prior = with_full_q_u(model, np.zeros(M), np.asarray(model.k_zz(jnp.arange(M))))
    for w in ([0], [2, 3, 6]):
        terms = eqx.filter_jit(prior.group_terms)(jnp.asarray(x), jnp.asarray(w), jnp.zeros((len(x), 0)))
        np.testing.assert_allclose(terms.mean, 0.0, atol=1e-12)
        np.testing.assert_allclose(terms.variance, VARIANCE, rtol=1e-7)
        np.testing.assert_allclose(terms.kl, 0.0, atol=1e-7)


def test_samples_of_f_through_random_active_sets_have_the_prior_moments(float64, rng):
    """u from p(u | w) for a random w, then f from p(f | u): the covariance of f is that of the prior."""
    x = np.linspace(-1, 1, 4)[:, None]
    z = np.linspace(-1, 1, 6)[:, None]
    k = lambda a, b: oracle.matern52(a, b, np.array([0.6]), 1.0)  # noqa: E731
    samples = []
    for _ in range(300):
        w = rng.choice(6, size=rng.integers(1, 7), replace=False)
        k_zz = k(z[w], z[w]) + 1e-10 * np.eye(len(w))
        a = np.linalg.solve(k_zz, k(z[w], x)).T
        u = np.linalg.cholesky(k_zz) @ rng.normal(size=(len(w), 200))
        rest = np.linalg.cholesky(k(x, x) - a @ k(z[w], x) + 1e-10 * np.eye(4))
        samples.append(a @ u + rest @ rng.normal(size=(4, 200)))
    np.testing.assert_allclose(np.cov(np.concatenate(samples, axis=1)), k(x, x), atol=0.03)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_float32_gives_the_same_bound(rng, precision):
    x, y = toy(rng)
    with jax.enable_x64(True):
        expected = float(estimate(make(x, PerPoint(H)), x, y))
    # Built outside of any float64 scope, as a user would.
    model = make(x, PerPoint(H), precision=precision, jitter=1e-8 if precision == "float64" else 1e-6)
    assert model.precision == precision
    with jax.enable_x64(precision == "float64"):
        np.testing.assert_allclose(float(estimate(model, x, y)), expected, **TOLERANCE[precision])


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("n_neighbors", [8, 100])
def test_repeated_inducing_inputs_do_not_break_the_factor(rng, precision, n_neighbors):
    """Every inducing input is the same point, and the smoothest covariance sees no difference between any."""
    x = np.ones((120, 2))
    model = create(
        x,
        Matern52(5.0),
        Gaussian(0.1),
        PerPoint(n_neighbors),
        n_inducing=120,
        placement="subset",
        precision=precision,
    )
    with jax.enable_x64(precision == "float64"):
        value, gradient = eqx.filter_value_and_grad(estimate)(model, x[:4], np.zeros(4))
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def largest_array(jaxpr):
    """Entries of the largest array that a program computes, its inner programs included."""
    sizes = [np.prod(var.aval.shape, dtype=int) for eqn in jaxpr.eqns for var in eqn.outvars]
    inner = [
        largest_array(getattr(value, "jaxpr", value))
        for eqn in jaxpr.eqns
        for parameter in eqn.params.values()
        for value in (parameter if isinstance(parameter, tuple) else (parameter,))
        if hasattr(value, "eqns") or hasattr(value, "jaxpr")
    ]
    return max([*sizes, *inner], default=0)


def test_with_points_of_their_own_sets_no_array_grows_with_the_square_of_m(rng):
    """The bound and its gradient at M = 2,000: nothing larger than the scores of the search, B times M."""
    x = rng.normal(size=(2000, D)).astype(np.float32)
    model = make(x, PerPoint(4), "diag", n_inducing=2000, precision="float32")
    learned, fixed = eqx.partition(model, eqx.is_inexact_array)

    def loss(learned, x, y):
        both = eqx.combine(learned, fixed)
        return bound(both, x, y, both.active_set(x), 2000)

    program = jax.make_jaxpr(jax.value_and_grad(loss))(learned, jnp.asarray(x[:8]), jnp.zeros(8))
    assert 8 * 2000 <= largest_array(program.jaxpr) < 100_000


@pytest.mark.parametrize("n_columns", [1, 784])
def test_any_number_of_columns_will_do(rng, n_columns):
    x = rng.normal(size=(20, n_columns))
    model = create(x, Matern52(np.sqrt(n_columns)), Gaussian(), PerPoint(4), n_inducing=10)
    assert np.isfinite(estimate(model, x, np.zeros(20)))


def test_a_covariance_that_is_not_stationary_takes_the_largest_values(float64, rng):
    x, y = toy(rng)
    two_scales = Matern32(0.8) + Matern52(3.0)
    # Linear terms, which are largest far away, have no say.
    for covariance in (two_scales, two_scales + Linear(0.5) + Columns(Constant(0.1) * Linear(1.0), [1])):
        model = make(x, PerPoint(H), covariance=covariance)
        k = np.asarray(two_scales.matrix(jnp.asarray(x), model.inducing))
        np.testing.assert_array_equal(np.sort(model.active_set(jnp.asarray(x))), np.sort(np.argsort(-k, axis=1)[:, :H]))
        assert np.isfinite(estimate(model, x, y))


def test_another_covariance_may_define_who_is_near(float64, rng):
    x, _ = toy(rng)
    model = make(x, PerPoint(H), nearest_by=Matern52([100.0, 0.01]))
    by_second_column = np.argsort(np.abs(x[:, 1:] - np.asarray(model.inducing)[:, 1]), axis=1)[:, :H]
    np.testing.assert_array_equal(np.sort(model.active_set(jnp.asarray(x))), np.sort(by_second_column))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"active": PerPoint(8)}, "n_neighbors must be a whole number between 1 and n_inducing=7, got 8"),
        ({"active": PerPoint(0)}, "n_neighbors must be a whole number between 1"),
        ({"active": Union(9, 2)}, "n_active must be a whole number between 1 and n_inducing=7, got 9"),
        ({"active": PerPoint(2), "n_inducing": 13}, "n_inducing must be between 1 and the number of training rows, 12"),
        ({"active": PerPoint(1), "n_inducing": 0}, "n_inducing must be a whole number, 1 or more"),
        ({"active": All(), "placement": "grid"}, "placement must be"),
        ({"active": All(), "placement": np.zeros((7, 3))}, r"shape \(7, 2\)"),
        ({"active": All(), "precision": "float16"}, "precision must be one of float32, float64"),
        ({"active": All(), "form": "banded"}, "covariance_form must be"),
        ({"active": All(), "covariance": Matern52([1.0, 2.0, 3.0])}, "one number or 2"),
        ({"active": All(), "jitter": -1.0}, "jitter must be between 0 and 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(rng, options, message):
    with pytest.raises(SettingError, match=message):
        make(toy(rng)[0], **options)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.full((20, 2), np.nan), "40 NaN or infinite values in columns 0, 1"),
        (np.full((20, 2), 1e200), "too large for float32"),
        (np.zeros(20), r"use x\[:, None\]"),
        (np.zeros((0, 2)), "at least one row"),
    ],
)
@pytest.mark.parametrize("placement", ["kmeans", "subset"])
def test_inputs_that_cannot_be_used_are_refused_when_a_model_is_made(x, message, placement):
    with pytest.raises(DataError, match=message):
        create(x, Matern52(1.0), Gaussian(), PerPoint(1), n_inducing=2, placement=placement)


@pytest.mark.parametrize("active", [PerPoint(H), Union(4, 2), All()])
def test_an_offset_shifts_the_function_and_nothing_else(float64, rng, active):
    x, y = toy(rng)
    plain, shifted = make(x, active), make(x, active, offset=np.array([5.0]))
    np.testing.assert_allclose(estimate(shifted, x, y + 5.0), estimate(plain, x, y), **EXACT)
    mean, variance = Predictor(plain).moments(x)
    mean_shifted, variance_shifted = Predictor(shifted).moments(x)
    np.testing.assert_allclose(mean_shifted, mean + 5.0, **EXACT)
    np.testing.assert_allclose(variance_shifted, variance, **EXACT)
    np.testing.assert_allclose(Predictor(shifted).joint(x)[0], Predictor(plain).joint(x)[0] + 5.0, **EXACT)
