"""KISS-GP and SVDKL: what they learn, that they do so again, and what is said where PyTorch is missing."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from swsgp import Bernoulli, Gaussian, Poisson, Softmax
from swsgp.baselines.kiss_gp import KissGP, fit_kiss_gp
from swsgp.baselines.predictive import log_density, moments, probabilities
from swsgp.baselines.svdkl import SVDKL, _expected_log_prob, _module, fit_svdkl
from swsgp.baselines.torch_parts import import_torch
from swsgp.errors import DataError, SettingError

SMALL = {"hidden": (20, 10), "grid_size": 16, "batch_size": 100}


@pytest.fixture
def with_torch():
    pytest.importorskip("gpytorch")


def waves(rng, n):
    """Numbers that depend on two directions among three columns, with noise of standard deviation 0.1."""
    x = rng.normal(size=(n, 3))
    return x, np.sin(x[:, 0] + x[:, 1]) + 0.5 * x[:, 2] + 0.1 * rng.normal(size=n)


@pytest.mark.usefixtures("with_torch")
@pytest.mark.parametrize(
    ("fit", "n"),
    [
        (lambda x, y: fit_kiss_gp(x, y, grid_size=12, steps=40), 100),
        (lambda x, y: fit_svdkl(x, y, steps=300, learning_rate=0.02, **SMALL), 500),
    ],
    ids=["kiss_gp", "svdkl"],
)
def test_numbers_are_predicted_far_better_than_by_their_mean(rng, fit, n):
    x, y = waves(rng, n + 50)
    model = fit(x[:n], y[:n])
    latent = model.latent(x[n:])
    mean, variance = moments(model.likelihood, *latent)
    assert np.sqrt(np.mean((mean - y[n:]) ** 2)) < 0.35 * y.std()
    assert log_density(model.likelihood, *latent, y[n:]).mean() > -0.5
    np.testing.assert_allclose(variance, latent[1][:, 0] + np.exp(model.likelihood.log_noise), rtol=1e-9)
    assert (latent[1] > 0).all()


@pytest.mark.usefixtures("with_torch")
def test_kiss_gp_between_the_points_of_a_fine_grid_is_an_exact_gp(rng):
    x, y = waves(rng, 40)
    points = 0.3 * rng.normal(size=(5, 3))
    model = fit_kiss_gp(x, y, grid_size=40, steps=3)
    learned = model.parameters
    projection = learned["projection.weight"]
    rows = x @ projection.T
    low, width = rows.min(axis=0), np.ptp(rows, axis=0)
    softplus = {name: np.logaddexp(0, value) for name, value in learned.items()}
    # On a grid GPyTorch takes the lengthscales from the last column to the first.
    scales = softplus["covariance.base_kernel.base_kernel.raw_lengthscale"][0, ::-1]
    variance = softplus["covariance.raw_outputscale"]

    def covariance(one, other):
        one, other = (0.9 * (2 * (part @ projection.T - low) / width - 1) / scales for part in (one, other))
        return variance * np.exp(-0.5 * ((one[:, None] - other[None]) ** 2).sum(axis=-1))

    inverse = np.linalg.inv(covariance(x, x) + float(model.likelihood.noise) * np.eye(40))
    k_px = covariance(points, x)
    constant = learned["mean.raw_constant"]
    mean, found_variance = model.latent(points)
    np.testing.assert_allclose(mean[:, 0], constant + k_px @ inverse @ (y - constant), atol=2e-3)
    np.testing.assert_allclose(found_variance[:, 0], variance - np.sum(k_px @ inverse * k_px, axis=1), atol=2e-3)


@pytest.mark.usefixtures("with_torch")
@pytest.mark.parametrize("likelihood", [Bernoulli(), Softmax(3)], ids=["probit", "softmax"])
def test_svdkl_learns_classes_far_better_than_the_base_rate(rng, likelihood):
    x = rng.normal(size=(400, 2))
    edges = [1.2] if isinstance(likelihood, Bernoulli) else [0.8, 1.5]
    y = np.digitize(np.linalg.norm(x, axis=1), edges).astype(float)
    model = fit_svdkl(x[:300], y[:300], likelihood, steps=200, learning_rate=0.02, **SMALL)
    latent = model.latent(x[300:])
    found = probabilities(likelihood, *latent)
    assert np.mean(found.argmax(axis=1) == y[300:]) > 0.85
    rates = np.bincount(y[:300].astype(int)) / 300
    assert log_density(likelihood, *latent, y[300:]).mean() > 0.6 * np.sum(rates * np.log(rates))


@pytest.mark.usefixtures("with_torch")
@pytest.mark.parametrize(
    "likelihood", [Gaussian(0.3), Bernoulli(), Bernoulli("logit")], ids=["gaussian", "probit", "logit"]
)
def test_svdkl_trains_on_the_expected_log_probability_of_our_likelihoods(float64, rng, likelihood):
    torch, _ = import_torch()
    module = _module(3, (4,), 2, 8, 1)
    mean, variance, y = rng.normal(size=(6, 2)), rng.uniform(0.1, 1, size=(6, 2)), rng.integers(0, 2, 6).astype(float)
    log_noise = torch.tensor(np.log(0.3))
    with torch.no_grad():
        found = _expected_log_prob(likelihood, module, log_noise)(*map(torch.from_numpy, (y, mean, variance))).numpy()
        weights, constant = module.mix.weight.numpy()[0], module.mix.bias.numpy()
    f_mean, f_variance = (mean @ weights + constant)[:, None], (variance @ weights**2)[:, None]
    expected = jax.vmap(likelihood.expected_log_prob)(*map(jnp.asarray, (y, f_mean, f_variance)))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.usefixtures("with_torch")
@pytest.mark.parametrize(
    "fit",
    [
        lambda x, y, seed: fit_kiss_gp(x, y, grid_size=8, steps=3, seed=seed),
        lambda x, y, seed: fit_svdkl(x, y, steps=5, seed=seed, **SMALL),
    ],
    ids=["kiss_gp", "svdkl"],
)
def test_the_same_seed_gives_the_same_model_and_leaves_the_callers_random_numbers_alone(rng, fit):
    import torch

    x, y = waves(rng, 40)
    torch.manual_seed(7)
    expected = torch.rand(1).item()
    torch.manual_seed(7)
    one, same, other = (fit(x, y, seed) for seed in (0, 0, 1))
    assert torch.rand(1).item() == expected
    np.testing.assert_array_equal(one.latent(x), same.latent(x))
    assert np.abs(one.latent(x)[0] - other.latent(x)[0]).max() > 1e-6


@pytest.mark.usefixtures("with_torch")
def test_what_is_predicted_comes_from_the_records_arrays_alone(rng):
    x, y = waves(rng, 40)
    kiss, deep = fit_kiss_gp(x, y, grid_size=8, steps=2), fit_svdkl(x, y, steps=2, **SMALL)
    again = KissGP(kiss.likelihood, kiss.x, kiss.y, dict(kiss.parameters), kiss.grid_size)
    np.testing.assert_array_equal(again.latent(x), kiss.latent(x))
    again = SVDKL(deep.likelihood, dict(deep.parameters), 3, deep.hidden, deep.n_features, deep.grid_size)
    np.testing.assert_array_equal(again.latent(x), deep.latent(x))


@pytest.mark.usefixtures("with_torch")
def test_what_cannot_be_is_refused(rng):
    x, y = waves(rng, 20)
    with pytest.raises(SettingError, match="grid_size must be 4 or more, for cubic interpolation, got 2"):
        fit_kiss_gp(x, y, grid_size=2)
    with pytest.raises(SettingError, match="SVDKL takes Gaussian, Bernoulli or Softmax, got Poisson"):
        fit_svdkl(x, np.round(np.abs(y)), Poisson())
    with pytest.raises(SettingError, match="hidden layers of 1 or more"):
        fit_svdkl(x, y, hidden=(0,))
    with pytest.raises(DataError, match="needs labels among"):
        fit_svdkl(x, y, Bernoulli())


@pytest.mark.parametrize("name", ["torch", "gpytorch"])
@pytest.mark.parametrize("fit", [fit_kiss_gp, fit_svdkl])
def test_where_pytorch_is_missing_the_error_says_how_to_install_it(rng, monkeypatch, fit, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SettingError, match=rf'{name} is missing; run: pip install "swsgp\[baselines\]"'):
        fit(*waves(rng, 20))


def test_a_fitted_model_says_so_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    model = SVDKL(Gaussian(), {}, 3, (5,), 2, 8)
    with pytest.raises(SettingError, match="torch is missing"):
        model.latent(np.ones((1, 3)))
