"""The local terms against the NumPy oracle, and their closed-form gradients against finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import finite_difference, kl, q_f
from tolerances import EXACT, TOLERANCE

from swsgp.ops.local import (
    inverse_factor,
    joint_covariance,
    local_terms_diagonal,
    local_terms_full,
    log_det,
    marginals_full,
    prior_remainder,
    weights,
)


def problem(rng, n_active, n_points, n_latent):
    """A group with a random positive definite K, and q(u) for each latent function."""
    root = rng.normal(size=(n_active + n_points, n_active + n_points + 3))
    joint = root @ root.T / root.shape[1] + 0.3 * np.eye(n_active + n_points)
    k_zz, k_zx, k_xx = joint[:n_active, :n_active], joint[:n_active, n_active:], joint[n_active:, n_active:]
    mean = rng.normal(size=(n_active, n_latent))
    variance = rng.uniform(0.1, 2.0, size=(n_active, n_latent))
    roots = rng.normal(size=(n_latent, n_active, n_active + 2))
    return k_zz, k_zx, k_xx, mean, variance, roots @ roots.transpose(0, 2, 1)


SIZES = [(1, 1, 1), (2, 1, 1), (4, 1, 3), (8, 1, 1), (9, 1, 2), (16, 1, 1), (5, 7, 2), (20, 12, 1)]


@pytest.mark.parametrize(("n_active", "n_points", "n_latent"), SIZES)
@pytest.mark.parametrize("form", ["diag", "full"])
def test_terms_equal_the_oracle(float64, rng, n_active, n_points, n_latent, form):
    k_zz, k_zx, k_xx, mean, variance, cov = problem(rng, n_active, n_points, n_latent)
    covs = [np.diag(variance[:, q]) for q in range(n_latent)] if form == "diag" else cov
    if form == "diag":
        terms = local_terms_diagonal(*map(jnp.asarray, (k_zz, k_zx, np.diag(k_xx), mean, variance)))
    else:
        log_dets = log_det(jnp.asarray(cov))
        terms = local_terms_full(*map(jnp.asarray, (k_zz, k_zx, np.diag(k_xx), mean, cov)), log_dets)
    for q in range(n_latent):
        for r in range(n_points):
            expected = q_f(k_zz, k_zx[:, r], k_xx[r, r], mean[:, q], covs[q])
            np.testing.assert_allclose((terms.mean[r, q], terms.variance[r, q]), expected, **EXACT)
    np.testing.assert_allclose(terms.kl, sum(kl(k_zz, mean[:, q], covs[q]) for q in range(n_latent)), **EXACT)


@pytest.mark.parametrize(("n_active", "n_points", "n_latent"), [(1, 1, 1), (3, 1, 2), (9, 1, 1), (4, 5, 2)])
@pytest.mark.parametrize("form", ["diag", "full"])
def test_gradients_equal_finite_differences(float64, rng, n_active, n_points, n_latent, form):
    k_zz, k_zx, k_xx, mean, variance, cov = problem(rng, n_active, n_points, n_latent)
    g_mean, g_variance = rng.normal(size=(2, n_points, n_latent))
    spread = variance if form == "diag" else cov

    def total(k_zz, k_zx, k_xx, mean, spread):
        if form == "diag":
            terms = local_terms_diagonal(k_zz, k_zx, k_xx, mean, spread)
        else:
            terms = local_terms_full(k_zz, k_zx, k_xx, mean, spread, log_det(spread))
        return jnp.sum(g_mean * terms.mean) + jnp.sum(g_variance * terms.variance) + 0.7 * terms.kl

    arguments = [jnp.asarray(array) for array in (k_zz, k_zx, np.diag(k_xx), mean, spread)]
    gradients = jax.grad(total, argnums=range(5))(*arguments)
    symmetric = {0} if form == "diag" else {0, 4}
    for i, gradient in enumerate(gradients):

        def moved(value, i=i):
            # The factor reads one triangle of a symmetric matrix, so both entries of a pair must move together.
            value = 0.5 * (value + np.swapaxes(value, -1, -2)) if i in symmetric else value
            return float(total(*arguments[:i], jnp.asarray(value), *arguments[i + 1 :]))

        expected = finite_difference(moved, np.array(arguments[i]))
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


def test_gradient_equals_differentiating_through_the_factor(float64, rng):
    """The closed form against autodiff of the same formulas, to rounding."""
    k_zz, k_zx, k_xx, mean, variance, _ = problem(rng, 12, 3, 2)
    arguments = [jnp.asarray(array) for array in (k_zz, k_zx, np.diag(k_xx), mean, variance)]

    def plain(k_zz, k_zx, k_xx, mean, variance):
        inverse = jnp.linalg.inv(k_zz)
        a = inverse @ k_zx
        f_mean = a.T @ mean
        f_variance = (k_xx - jnp.sum(k_zx * a, 0))[:, None] + (a**2).T @ variance
        kl = jnp.trace(inverse @ jnp.diag(variance.sum(1))) + jnp.sum(mean * (inverse @ mean))
        kl += 2 * jnp.linalg.slogdet(k_zz)[1] - jnp.sum(jnp.log(variance))
        return jnp.sum(jnp.sin(f_mean) * f_variance) - 0.5 * kl

    def ours(*arguments):
        terms = local_terms_diagonal(*arguments)
        return jnp.sum(jnp.sin(terms.mean) * terms.variance) - terms.kl

    ours_all, plain_all = (list(jax.grad(one, range(5))(*arguments)) for one in (ours, plain))
    # Ours is symmetric in K; the plain one spreads the same derivative unevenly over the two triangles.
    plain_all[0] = 0.5 * (plain_all[0] + plain_all[0].T)
    for ours_one, plain_one in zip(ours_all, plain_all, strict=True):
        np.testing.assert_allclose(ours_one, plain_one, **EXACT)


def test_batched_groups_equal_single_ones(float64, rng):
    groups = [problem(rng, 6, 1, 2)[:5] for _ in range(4)]
    stacked = [jnp.asarray(np.stack(column)) for column in zip(*groups, strict=True)]
    stacked[2] = jnp.diagonal(stacked[2], axis1=1, axis2=2)
    together = jax.vmap(local_terms_diagonal)(*stacked)
    for i in range(4):
        alone = local_terms_diagonal(*(column[i] for column in stacked))
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_allclose(one, other[i], **EXACT)


def test_float32_is_close_to_float64(rng):
    k_zz, k_zx, k_xx, mean, variance, _ = problem(rng, 16, 1, 1)
    arguments = (k_zz, k_zx, np.diag(k_xx), mean, variance)
    single = local_terms_diagonal(*(jnp.asarray(array, jnp.float32) for array in arguments))
    with jax.enable_x64(True):
        double = local_terms_diagonal(*(jnp.asarray(array, jnp.float64) for array in arguments))
    for one, other in zip(single, double, strict=True):
        np.testing.assert_allclose(one, other, **TOLERANCE["float32"])


def test_joint_covariance_equals_the_formula_and_has_the_marginals_on_its_diagonal(float64, rng):
    k_zz, k_zx, k_xx, mean, _, cov = problem(rng, 5, 6, 2)
    w = inverse_factor(jnp.asarray(k_zz))
    a = np.linalg.inv(k_zz) @ k_zx
    joint = joint_covariance(w, jnp.asarray(k_zx), jnp.asarray(k_xx), jnp.asarray(a.T @ cov @ a))
    for q in range(2):
        np.testing.assert_allclose(joint[q], k_xx + a.T @ (cov[q] - k_zz) @ a, **EXACT)
    remainder = prior_remainder(w, jnp.asarray(k_zx), jnp.asarray(np.diag(k_xx)))
    _, variance = marginals_full(weights(w, jnp.asarray(k_zx)), remainder, jnp.asarray(mean), jnp.asarray(cov))
    np.testing.assert_allclose(jnp.diagonal(joint, axis1=1, axis2=2).T, variance, **EXACT)


def test_variances_are_never_negative_where_rounding_would_make_them_so(rng):
    """In float32, points that coincide with inducing inputs leave a remainder of rounding errors only."""
    x = rng.normal(size=(30, 1)) * 0.01
    k = np.exp(-0.5 * (x - x.T) ** 2).astype(np.float32)
    k_zz = jnp.asarray(k + 1e-6 * np.eye(30, dtype=np.float32))
    variance = jnp.full((30, 1), 1e-12, jnp.float32)
    terms = local_terms_diagonal(k_zz, jnp.asarray(k), jnp.ones(30), jnp.zeros((30, 1)), variance)
    assert (np.asarray(terms.variance) >= 0).all()
