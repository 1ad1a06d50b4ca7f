"""Landmarks: two independent parts whose covariances add up to the kernel."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from models import H, M, make, toy
from tolerances import EXACT

from swsgp import RBF, PerPoint, Predictor
from swsgp.errors import NumericalError
from swsgp.gp.landmarks import Landmarks
from swsgp.gp.model import prepared, with_precision
from swsgp.shapes import precision_scope


@pytest.fixture
def landmarked(float64, rng):
    """A model with five landmarks and a random q(v), and test points."""
    x, _ = toy(rng)
    landmarks = Landmarks.at(jnp.asarray(rng.normal(size=(5, 2))), 1)
    root = jnp.asarray(np.tril(rng.normal(size=(1, 5, 5))))
    landmarks = eqx.tree_at(lambda p: (p.mean, p.root), landmarks, (jnp.asarray(rng.normal(size=(5, 1))), root))
    model = eqx.tree_at(lambda m: m.landmarks, make(x, PerPoint(H), "diag"), landmarks, is_leaf=lambda v: v is None)
    return model, x


def dense(model, x):
    """Prior covariance of (v, u, f) by the definition, features and local weights, in NumPy."""
    kernel, landmarks = model.covariance.matrix, model.landmarks
    k_gg = np.asarray(kernel(landmarks.inputs, landmarks.inputs))
    root = np.linalg.cholesky(k_gg + 1e-6 * np.mean(np.diagonal(k_gg)) * np.eye(5))
    points = jnp.concatenate([model.inducing, jnp.asarray(x)])
    phi = np.linalg.solve(root, np.asarray(kernel(landmarks.inputs, points))).T
    residual = np.asarray(kernel(points, points)) - phi @ phi.T
    residual[:M, :M] += float(model.jitter * model.covariance.variance) * np.eye(M)
    return phi[M:], residual[:M, :M], residual[:M, M:], residual[M:, M:]


def test_the_two_parts_of_the_prior_add_up_to_the_kernel(landmarked):
    model, x = landmarked
    model, x = prepared(model), jnp.asarray(x)
    seen = model.seen_from(x)
    np.testing.assert_allclose(model.k_xx(x, seen) + jnp.sum(seen**2, axis=1), model.covariance.diagonal(x), **EXACT)
    index = jnp.arange(M)
    features = model.landmarks.features[:M]
    cross = model.k_zx(index, x, seen) + features @ seen.T
    np.testing.assert_allclose(cross, model.covariance.matrix(model.inducing[:M], x), **EXACT)
    within = model.k_zz(index) - model.jitter * model.covariance.variance * jnp.eye(M) + features @ features.T
    np.testing.assert_allclose(within, model.covariance.matrix(model.inducing[:M], model.inducing[:M]), **EXACT)
    assert np.linalg.eigvalsh(np.asarray(model.k_zz(index))).min() > 0


def test_predictions_and_joint_covariances_are_those_of_the_definition(landmarked):
    model, x = landmarked
    phi, k_zz, k_zx, k_xx = dense(model, x)
    index = np.asarray(model.active_set(jnp.asarray(x)))
    a = np.zeros((len(x), M))
    for row, own in enumerate(index):
        a[row, own] = np.linalg.solve(k_zz[np.ix_(own, own)], k_zx[own, row])
    q, landmarks = model.variational, model.landmarks
    s = np.diag(np.exp(2 * np.asarray(q.log_std[:, 0])))
    root = np.asarray(landmarks.root[0])
    expected_mean = phi @ np.asarray(landmarks.mean) + a @ np.asarray(q.mean)
    cross = a @ k_zx
    expected_cov = k_xx - cross - cross.T + a @ (k_zz + s) @ a.T + phi @ root @ root.T @ phi.T
    predictor = Predictor(model)
    mean, cov = predictor.joint(x)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(cov[0], expected_cov, rtol=1e-6, atol=1e-8)
    mean, variance = predictor.latent(x)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(variance[:, 0], np.diagonal(expected_cov), rtol=1e-6, atol=1e-8)


def test_the_kl_of_landmarks_is_that_of_gaussians(landmarked):
    landmarks = landmarked[0].landmarks
    cov = np.asarray(landmarks.root[0] @ landmarks.root[0].T)
    expected = 0.5 * (np.trace(cov) + np.sum(np.asarray(landmarks.mean) ** 2) - 5 - np.linalg.slogdet(cov)[1])
    assert float(landmarks.kl()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("precision", "way_out"), [("float32", "take precision='float64'"), ("float64", "look for extreme values")]
)
def test_a_covariance_without_a_factor_is_an_error_of_numbers(precision, way_out):
    x = np.linspace(0, 1, 300, dtype=precision)[:, None]
    # In float64 a smooth covariance has a factor.
    x[7] = 0.5 if precision == "float32" else np.inf
    covariance = with_precision(RBF(3.0), precision)
    with (
        precision_scope(precision),
        pytest.raises(NumericalError, match=f"300 landmarks has no factor in {precision}; {way_out}"),
    ):
        Landmarks.at(jnp.asarray(x), 1).prepared(covariance, x)
