"""The full GP: against scikit-learn's, finite differences, and what learning must find."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.flatten_util import ravel_pytree
from models import toy
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
from tolerances import EXACT

from swsgp import RBF, Columns, Gaussian, Linear, Matern32, Matern52
from swsgp.baselines import exact
from swsgp.baselines.exact import JITTER, FullGP, Prior, fit_full_gp
from swsgp.baselines.predictive import log_density, moments
from swsgp.errors import DataError, SettingError
from swsgp.gp.model import with_precision
from swsgp.shapes import precision_scope

LENGTHSCALE, VARIANCE, NOISE, OFFSET = np.array([0.8, 1.5]), 1.3, 0.2, 0.4


def prior_with(covariance):
    return with_precision(Prior(covariance, Gaussian(NOISE), np.array(OFFSET)), "float64")


def full_gp(x, y, covariance):
    with precision_scope("float64"):
        return FullGP(prior_with(covariance), jnp.asarray(x), jnp.asarray(y))


@pytest.mark.parametrize(
    ("covariance", "peer", "n"),
    [
        (Matern52(LENGTHSCALE, VARIANCE), kernels.Matern(LENGTHSCALE, nu=2.5), 1),
        (Matern52(LENGTHSCALE, VARIANCE), kernels.Matern(LENGTHSCALE, nu=2.5), 40),
        (Matern32(LENGTHSCALE, VARIANCE), kernels.Matern(LENGTHSCALE, nu=1.5), 40),
        (RBF(LENGTHSCALE, VARIANCE), kernels.RBF(LENGTHSCALE), 40),
    ],
)
def test_it_equals_scikit_learn_in_mean_covariance_and_marginal_likelihood(rng, covariance, peer, n):
    x, y = toy(rng, n)
    points = np.concatenate([rng.normal(size=(7, 2)), x[:1]])
    kernel = kernels.ConstantKernel(VARIANCE) * peer + kernels.WhiteKernel(NOISE)
    theirs = GaussianProcessRegressor(kernel, alpha=JITTER * VARIANCE, optimizer=None).fit(x, y - OFFSET)
    mean, cov = theirs.predict(points, return_cov=True)
    ours = full_gp(x, y, covariance)
    found_mean, found_cov = ours.joint(points)
    np.testing.assert_allclose(found_mean[:, 0], mean + OFFSET, **EXACT)
    # Their covariance is that of observations.
    np.testing.assert_allclose(found_cov[0], cov - NOISE * np.eye(len(points)), **EXACT)
    assert ours.log_marginal_likelihood() == pytest.approx(theirs.log_marginal_likelihood_value_, rel=1e-9)


def test_marginals_are_those_of_the_joint_prediction_in_one_chunk_or_many(rng, monkeypatch):
    x, y = toy(rng, 20)
    model = full_gp(x, y, Matern52(LENGTHSCALE, VARIANCE))
    points = rng.normal(size=(13, 2))
    mean, cov = model.joint(points)
    for numbers in (1 << 24, 80):
        monkeypatch.setattr(exact, "_MAX_NUMBERS", numbers)
        found_mean, variance = model.latent(points)
        np.testing.assert_allclose(found_mean, mean, **EXACT)
        np.testing.assert_allclose(variance[:, 0], np.diagonal(cov[0]), **EXACT)


def test_the_marginal_likelihood_to_be_learned_from_is_that_of_the_model(float64, rng):
    x, y = toy(rng, 60)
    model = full_gp(x, y, Matern52(LENGTHSCALE, VARIANCE))
    value = jax.jit(Prior.log_marginal_likelihood)(model.prior, model.x, model.y)
    assert float(value) == pytest.approx(model.log_marginal_likelihood(), rel=1e-10)


@pytest.mark.parametrize(
    "covariance", [Matern52(LENGTHSCALE, VARIANCE), Linear(0.7) + Columns(RBF(0.6, 1.1), [1]) * Matern32(1.5)]
)
def test_gradient_of_the_marginal_likelihood_equals_finite_differences(float64, rng, covariance):
    x, y = toy(rng, 15)
    flat, unravel = ravel_pytree(prior_with(covariance))

    @jax.jit
    def value(flat):
        return unravel(flat).log_marginal_likelihood(jnp.asarray(x), jnp.asarray(y))

    expected = oracle.finite_difference(lambda flat: float(value(flat)), np.asarray(flat), 1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(value))(flat), expected, rtol=1e-6, atol=1e-6)


# Learning tests share sizes, 200 or 60 rows of two columns, and with them compiled programs.


def test_learning_finds_the_noise_the_mean_and_which_column_matters(rng):
    x = rng.uniform(-3, 3, size=(264, 2))
    y = 2.0 + np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=264)
    x, y, x_test, y_test = x[:200], y[:200], x[200:], y[200:]
    model = fit_full_gp(x, y)
    assert float(model.likelihood.noise) == pytest.approx(0.01, rel=0.3)
    lengthscale = np.asarray(model.prior.covariance.lengthscale)
    assert lengthscale[1] > 5 * lengthscale[0]
    latent = model.latent(x_test)
    mean, variance = moments(model.likelihood, *latent)
    assert np.sqrt(np.mean((mean - y_test) ** 2)) < 0.13
    density = log_density(model.likelihood, *latent, y_test)
    np.testing.assert_allclose(density, -0.5 * (np.log(2 * np.pi * variance) + (y_test - mean) ** 2 / variance))
    assert density.mean() > 0.6


def test_few_rows_may_teach_the_hyperparameters_and_all_are_conditioned_on(rng):
    x, y = toy(rng, 200)
    few, again, other = (fit_full_gp(x, y, n_learning=60, seed=seed) for seed in (0, 0, 1))
    assert few.x.shape == (200, 2)
    points = x[:64]
    np.testing.assert_array_equal(few.latent(points)[0], again.latent(points)[0])
    assert np.abs(few.latent(points)[0] - other.latent(points)[0]).max() > 1e-6
    rmse = np.sqrt(np.mean((few.latent(points)[0][:, 0] - np.sin(2 * points[:, 0])) ** 2))
    assert rmse < 0.06


def test_learning_ends_where_the_marginal_likelihood_is_flat(float64, rng):
    x, y = toy(rng, 60)
    model = fit_full_gp(x, y)
    gradient = jax.jit(jax.grad(Prior.log_marginal_likelihood))(model.prior, model.x, model.y)
    assert np.abs(ravel_pytree(gradient)[0]).max() < 0.05


def test_a_function_without_noise_and_repeated_rows_do_not_break_the_factor():
    x = np.repeat(np.linspace(-1, 1, 20)[:, None] * [1.0, 0.0], 3, axis=0)
    model = fit_full_gp(x, np.sin(3 * x[:, 0]))
    mean, variance = model.latent(np.array([[0.33, 0.0]]))
    assert mean[0, 0] == pytest.approx(np.sin(0.99), abs=1e-4)
    assert 0 <= variance[0, 0] < 1e-4


def test_a_constant_target_is_predicted_as_it_is(rng):
    model = fit_full_gp(rng.normal(size=(60, 2)), np.full(60, 1.5))
    np.testing.assert_allclose(model.latent(rng.normal(size=(1, 2)))[0], 1.5, atol=1e-3)


def test_too_many_rows_are_refused_with_a_way_out(rng):
    x, y = toy(rng, 30)
    with pytest.raises(SettingError, match=r"at most 20 rows, got 30; give a random subset .* model='swsgp'"):
        fit_full_gp(x, y, max_rows=20)


def test_inputs_that_do_not_fit_are_refused(rng):
    x, y = toy(rng, 30)
    with pytest.raises(DataError, match="as many rows"):
        fit_full_gp(x, y[:-1])
    with pytest.raises(SettingError, match="lengthscale"):
        fit_full_gp(x, y, covariance=Matern52(np.ones(3)))
    with pytest.raises(DataError, match="2 columns"):
        full_gp(x, y, Matern52()).latent(np.ones((2, 3)))
