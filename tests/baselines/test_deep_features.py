"""The deep GP by random features: against the covariance it approximates, Bayesian linear regression, and limits."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import toy
from scipy import stats
from tolerances import EXACT

from swsgp import RBF, Bernoulli, Gaussian, Softmax
from swsgp.baselines.deep_features import DeepFeatures, Layer, bound, fit_deep_features, outputs
from swsgp.baselines.predictive import log_density, moments, probabilities, quantiles
from swsgp.errors import DataError, SettingError
from swsgp.gp.model import with_precision
from swsgp.shapes import precision_scope

NOISE = 0.2


def layer(rng, n_inputs=2, n_frequencies=5, n_outputs=1, **changes):
    shape = (2 * n_frequencies, n_outputs)
    parts = {
        "frequencies": rng.normal(size=(n_inputs, n_frequencies)),
        "log_lengthscale": np.log(np.linspace(0.8, 1.5, n_inputs)),
        "log_variance": np.log(1.3),
        "mean": rng.normal(size=shape),
        "log_std": -1.0 + 0.3 * rng.normal(size=shape),
    }
    parts = {name: np.asarray(part) for name, part in {**parts, **changes}.items()}
    return with_precision(Layer(**parts), "float64")


def deep(*layers, likelihood=None, n_draws=64):
    return DeepFeatures(layers, with_precision(likelihood or Gaussian(NOISE), "float64"), n_draws)


@eqx.filter_jit
def estimate(model, x, y, draws):
    return bound(model, x, y, draws, x.shape[0])


def no_draws(n):
    return jnp.zeros((1, n, 0))


def test_products_of_features_approach_the_covariance_as_their_number_grows(float64, rng):
    x = jnp.asarray(rng.normal(size=(10, 2)))
    expected = RBF(np.array([0.8, 1.5]), 1.3).matrix(x, x)
    errors = []
    for n_frequencies in (100, 10_000):
        features = layer(rng, n_frequencies=n_frequencies).features(x)
        errors.append(float(jnp.sqrt(jnp.mean((features @ features.T - expected) ** 2))))
        # One frequency errs by at most 2 · 1.3, so the mean of J by about 1 / √J.
        assert errors[-1] < 1.3 / np.sqrt(n_frequencies)
    assert errors[1] < 0.3 * errors[0]


def blr_bound(features, y, mean, variance):
    """The bound of Bayesian linear regression with standard normal weights, from its definition."""
    log_prob = stats.norm.logpdf(y, features @ mean, np.sqrt(NOISE)) - features**2 @ variance / (2 * NOISE)
    kl = 0.5 * (variance + mean**2 - 1 - np.log(variance))
    return log_prob.sum() - kl.sum()


def test_the_bound_of_one_layer_is_that_of_bayesian_linear_regression_on_its_features(float64, rng):
    x, y = toy(rng, 30)
    one = layer(rng)
    features = np.asarray(one.features(jnp.asarray(x)))
    mean, variance = np.asarray(one.mean)[:, 0], np.exp(2 * np.asarray(one.log_std))[:, 0]
    found = estimate(deep(one), jnp.asarray(x), jnp.asarray(y), no_draws(30))
    np.testing.assert_allclose(found, blr_bound(features, y, mean, variance), **EXACT)


def orthogonal():
    """A layer and inputs on a circle at which its features are orthogonal, so that the posterior is factorised."""
    x = np.linspace(0, 2 * np.pi, 40, endpoint=False)[:, None]
    parts = {"frequencies": np.array([[1.0, 2.0, 3.0]]), "log_lengthscale": np.zeros(1)}
    return x, layer(np.random.default_rng(0), 1, 3, **parts)


def exact_posterior(features, y):
    """Mean and covariance of the weights of Bayesian linear regression."""
    cov = np.linalg.inv(np.eye(features.shape[1]) + features.T @ features / NOISE)
    return cov @ features.T @ y / NOISE, cov


def test_with_the_exact_posterior_the_bound_is_the_evidence_and_predictions_are_exact(float64, rng):
    x, start = orthogonal()
    y = np.sin(x[:, 0]) + 0.4 * rng.normal(size=40)
    features = np.asarray(start.features(jnp.asarray(x)))
    mean, cov = exact_posterior(features, y)
    best = eqx.tree_at(
        lambda one: (one.mean, one.log_std),
        start,
        (jnp.asarray(mean[:, None]), jnp.asarray(0.5 * np.log(np.diagonal(cov))[:, None])),
    )
    total = features @ features.T + NOISE * np.eye(40)
    evidence = stats.multivariate_normal(np.zeros(40), total).logpdf(y)
    np.testing.assert_allclose(estimate(deep(best), jnp.asarray(x), jnp.asarray(y), no_draws(40)), evidence, **EXACT)
    points = np.array([[0.3], [2.0]])
    at_points = np.asarray(best.features(jnp.asarray(points)))
    found_mean, found_variance = deep(best).latent(points)
    np.testing.assert_allclose(found_mean[0, :, 0], at_points @ mean, **EXACT)
    np.testing.assert_allclose(found_variance[0, :, 0], np.diagonal(at_points @ cov @ at_points.T), **EXACT)


def test_training_one_layer_finds_the_posterior_of_bayesian_linear_regression(rng):
    x = rng.uniform(-2, 2, size=(200, 1))
    y = np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=200)
    model = fit_deep_features(
        x, y, n_layers=1, n_frequencies=10, batch_size=200, steps=3000, learning_rate=0.02, precision="float64"
    )
    one, noise = model.layers[0], float(model.likelihood.noise)
    with precision_scope("float64"):
        features = np.asarray(one.features(jnp.asarray(x)))
    precision = np.eye(20) + features.T @ features / noise
    # The best factorised q has the exact mean, and the inverse of the diagonal of the exact precision.
    np.testing.assert_allclose(
        features @ np.asarray(one.mean)[:, 0], features @ np.linalg.solve(precision, features.T @ y) / noise, atol=2e-3
    )
    np.testing.assert_allclose(np.exp(2 * np.asarray(one.log_std))[:, 0], 1 / np.diagonal(precision), rtol=0.02)


def test_a_second_layer_whose_weights_are_known_reads_the_first_and_the_inputs(float64, rng):
    x = jnp.asarray(rng.normal(size=(4, 2)))
    first, second = layer(rng, n_outputs=3, log_std=np.full((10, 3), -50.0)), layer(rng, n_inputs=5)
    mean, variance = outputs(deep(first, second), x, jnp.asarray(rng.normal(size=(1, 3))))
    hidden = first.features(x) @ first.mean
    expected_mean, expected_variance = second.marginals(jnp.concatenate([hidden, x], axis=1))
    np.testing.assert_allclose(mean, expected_mean, **EXACT)
    np.testing.assert_allclose(variance, expected_variance, **EXACT)


def test_draws_of_hidden_outputs_have_the_moments_of_draws_of_weights(float64, rng):
    x = rng.normal(size=(3, 2))
    first, second = layer(rng, n_outputs=1), layer(rng, n_inputs=3)
    mean, variance = moments(Gaussian(1e-9), *deep(first, second, n_draws=256).latent(x))
    weights = np.asarray(first.mean) + np.exp(np.asarray(first.log_std)) * rng.normal(size=(20_000, 10, 1))
    hidden = np.asarray(first.features(jnp.asarray(x))) @ weights
    own = jax.vmap(lambda h: second.marginals(jnp.concatenate([h, jnp.asarray(x)], axis=1)))(jnp.asarray(hidden))
    expected = [np.mean(own[0], axis=0)[:, 0], (np.mean(own[1], axis=0) + np.var(own[0], axis=0))[:, 0]]
    np.testing.assert_allclose(mean, expected[0], atol=0.03)
    np.testing.assert_allclose(variance, expected[1], rtol=0.05)


def test_gradient_of_the_bound_equals_finite_differences(float64, rng):
    x, y = toy(rng, 6)
    model = deep(layer(rng, n_frequencies=2, n_outputs=2), layer(rng, n_inputs=4, n_frequencies=2))
    draws = jnp.asarray(rng.normal(size=(2, 6, 2)))
    leaves, structure = jax.tree.flatten(model)

    @jax.jit
    def value(leaves):
        return bound(structure.unflatten(leaves), jnp.asarray(x), jnp.asarray(y), draws, 20)

    for i, gradient in enumerate(jax.jit(jax.grad(value))(leaves)):
        entry = tuple(size - 1 for size in gradient.shape)
        up, down = ([leaf.at[entry].add(s) if j == i else leaf for j, leaf in enumerate(leaves)] for s in (1e-6, -1e-6))
        np.testing.assert_allclose(gradient[entry], (value(up) - value(down)) / 2e-6, rtol=1e-5, atol=1e-6)


def test_a_mixture_has_the_quantiles_at_which_its_mean_distribution_function_has_the_level(rng):
    mean, variance = rng.normal(size=(3, 4, 1)), rng.uniform(0.1, 1, size=(3, 4, 1))
    levels = np.array([0.05, 0.5, 0.9])
    found = quantiles(Gaussian(NOISE), mean, variance, levels)
    cdf = stats.norm.cdf(found[None], mean, np.sqrt(variance + NOISE)).mean(axis=0)
    np.testing.assert_allclose(cdf, np.broadcast_to(levels, (4, 3)), **EXACT)
    density = log_density(Gaussian(NOISE), mean, variance, np.zeros(4))
    expected = stats.norm.pdf(0, mean, np.sqrt(variance + NOISE)).mean(axis=0)[:, 0]
    np.testing.assert_allclose(density, np.log(expected), **EXACT)


def steps_in_a_plane(seed=0):
    """Inputs and numbers that jump where two columns change sign, and a model of the first 300 rows."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(364, 2))
    y = np.sign(x[:, 0] * x[:, 1]) + 0.1 * rng.normal(size=364)
    options = {"steps": 1500, "n_frequencies": 20, "batch_size": 100, "precision": "float64"}
    return x[300:], y[300:], fit_deep_features(x[:300], y[:300], seed=seed, **options)


@pytest.fixture(scope="module")
def learned():
    return steps_in_a_plane()


def test_two_layers_learn_steps(learned):
    x, y, model = learned
    mean, _ = moments(model.likelihood, *model.latent(x))
    assert np.sqrt(np.mean((mean - y) ** 2)) < 0.5


def test_what_is_predicted_for_a_row_does_not_depend_on_the_others(learned):
    x, _, model = learned
    whole = model.latent(x)
    assert whole[0].shape == (64, 64, 1)
    for found, expected in zip(model.latent(x[7:10]), whole, strict=True):
        np.testing.assert_allclose(found, expected[:, 7:10], **EXACT)


def test_the_same_seed_gives_the_same_model(learned):
    x, _, model = learned
    same, other = steps_in_a_plane(0)[2], steps_in_a_plane(1)[2]
    np.testing.assert_array_equal(model.latent(x), same.latent(x))
    assert np.abs(model.latent(x)[0] - other.latent(x)[0]).max() > 1e-3


@pytest.mark.parametrize("likelihood", [Bernoulli(), Softmax(3)], ids=["probit", "softmax"])
def test_classes_are_learned_far_better_than_the_base_rate(rng, likelihood):
    x = rng.normal(size=(400, 2))
    radius = np.linalg.norm(x, axis=1)
    y = np.digitize(radius, [1.2] if isinstance(likelihood, Bernoulli) else [0.8, 1.5]).astype(float)
    model = fit_deep_features(x[:300], y[:300], likelihood, steps=1000, n_frequencies=30, batch_size=100)
    latent = model.latent(x[300:])
    found = probabilities(likelihood, *latent)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-6)
    assert np.mean(found.argmax(axis=1) == y[300:]) > 0.85
    density = log_density(likelihood, *latent, y[300:])
    np.testing.assert_allclose(np.exp(density), found[np.arange(100), y[300:].astype(int)], rtol=1e-5)
    rates = np.bincount(y[:300].astype(int)) / 300
    assert density.mean() > 0.5 * np.sum(rates * np.log(rates))


def test_what_cannot_be_is_refused(rng):
    x, y = toy(rng)
    with pytest.raises(SettingError, match="n_layers must be a whole number, 1 or more, got 0"):
        fit_deep_features(x, y, n_layers=0)
    with pytest.raises(DataError, match=r"needs labels among 0\.\.1"):
        fit_deep_features(x, y, Bernoulli())
    with pytest.raises(SettingError, match="predicts classes; ask for probabilities"):
        moments(Bernoulli(), np.zeros((2, 1)), np.ones((2, 1)))
    with pytest.raises(SettingError, match="predicts numbers; ask for moments"):
        probabilities(Gaussian(), np.zeros((2, 1)), np.ones((2, 1)))
