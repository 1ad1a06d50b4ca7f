"""q(u) in closed form: a maximum of the bound, whichever way one looks at it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import LENGTHSCALE, NOISE, VARIANCE, estimate, make, toy

from swsgp import (
    All,
    Bernoulli,
    Gaussian,
    Matern52,
    PerPoint,
    Poisson,
    Predictor,
    Softmax,
    StudentT,
    bound,
)
from swsgp.data.stores import Store
from swsgp.errors import NumericalError, SettingError
from swsgp.fit import solve, system
from swsgp.fit.solve import maximise
from swsgp.fit.solve_parts import maximise_parts, parts_of
from swsgp.fit.system import build
from swsgp.gp.landmarks import Landmarks
from swsgp.gp.model import prepared

OBSERVATIONS = {
    "gaussian": (Gaussian(NOISE), lambda y, rng: y),
    "student-t": (StudentT(0.3), lambda y, rng: y + 3.0 * (rng.uniform(size=len(y)) < 0.1)),
    "poisson": (Poisson(), lambda y, rng: rng.poisson(np.exp(y)).astype(float)),
    "probit": (Bernoulli(), lambda y, rng: (y > 0).astype(float)),
    "logit": (Bernoulli("logit"), lambda y, rng: (y > 0).astype(float)),
    "softmax": (Softmax(3), lambda y, rng: np.digitize(y, [-0.4, 0.4]).astype(float)),
}


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """Converged all the way, so that what is compared is the method."""
    monkeypatch.setattr(solve, "MAX_ITERATIONS", 10_000)
    monkeypatch.setattr(solve, "TOLERANCE", 1e-12)
    monkeypatch.setattr(solve, "ENOUGH", 1e-12)
    monkeypatch.setattr(solve, "MAX_PASSES", 100)


def with_solution(model, solution):
    if model.landmarks is not None:
        root = jnp.linalg.cholesky(jnp.asarray(solution.overall_cov))
        places = lambda m: (m.landmarks.mean, m.landmarks.root)  # noqa: E731
        model = prepared(eqx.tree_at(places, model, (jnp.asarray(solution.overall_mean), root)))
    return eqx.tree_at(
        lambda m: (m.variational.mean, m.variational.log_std),
        model,
        (jnp.asarray(solution.mean), 0.5 * jnp.log(jnp.asarray(solution.variance))),
    )


@pytest.mark.parametrize("name", list(OBSERVATIONS))
def test_rows_that_come_in_parts_have_the_same_solution(float64, rng, tmp_path, name):
    model, expected, x, y, kl_scale = solved(rng, name)
    store = Store.write(tmp_path, [(x[:15], y[:15]), (x[15:], y[15:])], 3, "float64", 0)
    found = maximise_parts(model, parts_of(store, model), kl_scale)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-5, atol=1e-8)


def test_a_system_that_is_not_one_of_numbers_is_an_error_not_the_prior(float64, rng, tmp_path):
    model, _, x, y, _ = solved(rng, "gaussian")
    made = build(model, x)
    made.a.data[7] = np.nan
    with pytest.raises(NumericalError, match="comes to no finite number; look for extreme values"):
        maximise(made, model.likelihood, np.asarray(model.offset), y, 1.0)


def test_sums_over_parts_that_are_no_numbers_are_an_error(float64, rng, tmp_path):
    model, _, x, y, kl_scale = solved(rng, "gaussian")
    y[7] = np.nan
    store = Store.write(tmp_path, [(x, y)], 1, "float64", 0)
    with pytest.raises(NumericalError, match="comes to no finite number; look for extreme values"):
        maximise_parts(model, parts_of(store, model), kl_scale)


def with_landmarks(model, places):
    landmarks = Landmarks.at(jnp.asarray(places), model.likelihood.n_latent)
    return eqx.tree_at(lambda m: m.landmarks, model, landmarks, is_leaf=lambda leaf: leaf is None)


def solved(rng, name, n_inducing=9, n_neighbors=4, kl_scale=1.7, n=40, n_landmarks=0):
    likelihood, observe = OBSERVATIONS[name]
    x, y = toy(rng, n)
    y = observe(y, rng)
    model = make(x, PerPoint(n_neighbors), "diag", n_inducing, likelihood, offset=np.full(likelihood.n_latent, 0.2))
    if n_landmarks:
        model = with_landmarks(model, rng.normal(size=(n_landmarks, 2)))
    solution = maximise(build(model, x), model.likelihood, np.asarray(model.offset), y, kl_scale)
    return model, solution, x, y, kl_scale


@pytest.mark.parametrize(
    ("name", "n_inducing", "n_neighbors", "n_landmarks"),
    [
        ("gaussian", 7, 1, 0),
        ("gaussian", 9, 4, 5),
        ("poisson", 9, 4, 0),
        ("probit", 9, 4, 0),
        ("softmax", 9, 4, 3),
    ],
)
def test_the_gradient_of_the_bound_is_zero_at_the_solution(float64, rng, name, n_inducing, n_neighbors, n_landmarks):
    model, solution, x, y, kl_scale = solved(rng, name, n_inducing, n_neighbors, n_landmarks=n_landmarks)
    model = eqx.tree_at(lambda m: m.inducing, with_solution(model, solution), replace_fn=lambda z: z[:n_inducing])
    index = model.active_set(jnp.asarray(x))

    def parts(m):
        q = [m.variational.mean, m.variational.log_std]
        return q if m.landmarks is None else [*q, m.landmarks.mean, m.landmarks.root]

    def value(q):
        moved = eqx.tree_at(parts, model, q)
        return bound(moved, jnp.asarray(x), jnp.asarray(y), index, len(x), kl_scale)

    for gradient in jax.grad(value)(parts(model)):
        # The root of C has nothing above its diagonal.
        np.testing.assert_allclose(np.tril(gradient) if gradient.ndim == 3 else gradient, 0.0, atol=1e-5)


# Rows far out under Student's t would have negative weights and get the least one: near the maximum, not at it.
@pytest.mark.parametrize("name", ["gaussian", "student-t"])
def test_its_own_bound_is_that_of_algorithm_1_and_never_gets_worse(float64, rng, name):
    model, solution, x, y, kl_scale = solved(rng, name)
    assert solution.bounds[-1] == pytest.approx(float(estimate(with_solution(model, solution), x, y, None, kl_scale)))
    assert list(solution.bounds) == sorted(solution.bounds)
    assert len(solution.bounds) == 2 if name == "gaussian" else len(solution.bounds) > 2


def test_random_steps_away_from_the_solution_only_lower_the_bound(float64, rng):
    model, solution, x, y, kl_scale = solved(rng, "gaussian")
    best = float(estimate(with_solution(model, solution), x, y, None, kl_scale))
    for _ in range(20):
        moved = eqx.tree_at(
            lambda m: (m.variational.mean, m.variational.log_std),
            with_solution(model, solution),
            replace_fn=lambda leaf: leaf + 0.01 * rng.normal(size=leaf.shape),
        )
        assert float(estimate(moved, x, y, None, kl_scale)) < best


def test_with_all_neighbours_the_mean_is_titsias_and_s_the_best_diagonal(float64, rng):
    x, y = toy(rng, 40)
    model = make(x, PerPoint(7), "diag", 7)
    solution = maximise(build(model, x), model.likelihood, np.zeros(1), y, 1.0)
    covariance = Matern52(LENGTHSCALE, VARIANCE)
    z = np.asarray(model.inducing)
    k_zz = np.asarray(model.k_zz(jnp.arange(7)))
    k_zx = np.asarray(covariance.matrix(jnp.asarray(z), jnp.asarray(x)))
    # Titsias: q(u) = N(K Σ k y / σ², K Σ K) with Σ = (K + k kᵀ / σ²)⁻¹.
    sigma = np.linalg.inv(k_zz + k_zx @ k_zx.T / NOISE)
    np.testing.assert_allclose(solution.mean[:, 0], k_zz @ sigma @ k_zx @ y / NOISE, rtol=1e-6, atol=1e-8)
    precision = np.linalg.inv(k_zz @ sigma @ k_zz)
    np.testing.assert_allclose(solution.variance[:, 0], 1.0 / np.diagonal(precision), rtol=1e-6)


def test_landmarks_alone_are_titsias_with_a_full_covariance(float64, rng):
    """Inducing inputs far away explain nothing, and leave all to the landmarks."""
    x, y = toy(rng, 40)
    places = x[:6]
    model = with_landmarks(make(x, PerPoint(3), "diag", 7, placement=x[:7] + 1000.0), places)
    solution = maximise(build(model, x), model.likelihood, np.zeros(1), y, 1.0)
    covariance = Matern52(LENGTHSCALE, VARIANCE)
    k_gg = np.asarray(covariance.matrix(jnp.asarray(places), jnp.asarray(places))) + 1e-6 * VARIANCE * np.eye(6)
    k_gx = np.asarray(covariance.matrix(jnp.asarray(places), jnp.asarray(x)))
    sigma = np.linalg.inv(k_gg + k_gx @ k_gx.T / NOISE)
    root = np.linalg.cholesky(k_gg)
    np.testing.assert_allclose(root @ solution.overall_mean[:, 0], k_gg @ sigma @ k_gx @ y / NOISE, rtol=1e-6)
    np.testing.assert_allclose(root @ solution.overall_cov[0] @ root.T, k_gg @ sigma @ k_gg, rtol=1e-6, atol=1e-9)


def test_blocks_of_rows_make_no_difference(float64, rng, monkeypatch):
    x, _ = toy(rng, 50)
    model = make(x, PerPoint(3), "diag", 9)
    whole = build(model, x)
    monkeypatch.setattr(system, "MAX_BLOCKS", 9 * 8)
    parts = build(model, x)
    np.testing.assert_allclose(parts.prior.toarray(), whole.prior.toarray(), rtol=1e-12)
    np.testing.assert_allclose(parts.a.toarray(), whole.a.toarray(), rtol=1e-12)
    np.testing.assert_allclose(parts.remainder, whole.remainder, rtol=1e-10)
    assert parts.log_det == pytest.approx(whole.log_det)


def test_inducing_inputs_that_no_row_uses_do_no_harm(float64, rng):
    x, y = toy(rng, 40)
    z = np.concatenate([x[:6], [[100.0, 100.0]]])
    model = make(x, PerPoint(3), "diag", 7, placement=z)
    solution = maximise(build(model, x), model.likelihood, np.zeros(1), y, 2.0)
    assert np.isfinite(solution.mean).all()
    assert solution.mean[-1, 0] == 0.0
    assert (solution.variance > 0).all()
    assert np.isfinite(Predictor(with_solution(model, solution)).moments(x)).all()


def test_models_whose_points_share_a_set_are_refused(float64, rng):
    x, _ = toy(rng)
    with pytest.raises(SettingError, match="each point has its own active set"):
        build(make(x, All(), "diag"), x)
