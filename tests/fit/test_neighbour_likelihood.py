"""Hyper-parameters from neighbours: the likelihood against NumPy, and what it learns against the truth."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from swsgp import Bernoulli, Gaussian, Matern52, Settings, Softmax
from swsgp.fit.neighbour_likelihood import Hyper, Rows, learn, log_conditionals, other_rows, start
from swsgp.fit.solved import _stand_ins
from swsgp.gp.model import with_precision
from swsgp.shapes import precision_scope


def hyper_for(likelihood, n_columns=2, precision="float64"):
    covariance = Matern52(np.linspace(0.7, 1.4, n_columns), 1.3)
    offset = jnp.full(likelihood.n_latent, 0.3)
    return with_precision(Hyper(covariance, likelihood, offset, jnp.asarray(-1.0), jnp.asarray(0.4)), precision)


def table(rng, n=30, d=2):
    x = rng.normal(size=(n, d))
    return x, np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=n)


def test_a_gaussian_term_is_the_conditional_density_of_a_joint_gaussian(float64, rng):
    x, y = table(rng)
    hyper = hyper_for(Gaussian(0.2))
    rows = np.array([3, 17, 5])
    near = other_rows(hyper.covariance, x, rows[None], 6)[0]
    data = Rows(jnp.asarray(x), jnp.asarray(y), jnp.asarray(y)[:, None])
    found = log_conditionals(hyper, data, jnp.asarray(rows), jnp.asarray(near), jnp.asarray(0.0))
    for row, own, value in zip(rows, near, found, strict=True):
        points = np.concatenate([own, [row]])
        cov = np.asarray(hyper.covariance.matrix(jnp.asarray(x[points]), jnp.asarray(x[points]))) + 0.2 * np.eye(7)
        joint = stats.multivariate_normal(np.full(7, 0.3), cov).logpdf(y[points])
        others = stats.multivariate_normal(np.full(6, 0.3), cov[:6, :6]).logpdf(y[own])
        assert float(value) == pytest.approx(joint - others, rel=1e-9)


def test_a_term_of_another_likelihood_is_its_predictive_of_what_the_stand_ins_say(float64, rng):
    x, y = table(rng)
    labels = (y > 0).astype(float)
    stand_ins = _stand_ins(Bernoulli(), labels)
    hyper = hyper_for(Bernoulli())
    near = other_rows(hyper.covariance, x, np.array([[4]]), 8)[0, 0]
    data = Rows(*map(jnp.asarray, (x, labels, stand_ins)))
    found = log_conditionals(hyper, data, jnp.array([4]), jnp.asarray(near[None]), jnp.asarray(0.0))[0]
    k = np.asarray(hyper.covariance.matrix(jnp.asarray(x), jnp.asarray(x)))
    inverse = np.linalg.inv(k[np.ix_(near, near)] + np.exp(-1.0) * np.eye(8))
    mean = 0.3 + k[4, near] @ inverse @ (np.exp(0.4) * stand_ins[near, 0])
    variance = k[4, 4] - k[4, near] @ inverse @ k[near, 4]
    expected = stats.norm.logcdf((2 * labels[4] - 1) * mean / np.sqrt(1 + variance))
    assert float(found) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("likelihood", [Gaussian(0.2), Softmax(3)])
def test_the_gradient_equals_finite_differences(float64, rng, likelihood):
    x, y = table(rng, 20)
    y = np.digitize(y, [-0.3, 0.3]) * 1.0 if isinstance(likelihood, Softmax) else y
    hyper = hyper_for(likelihood)
    rows = jnp.arange(5)
    near = jnp.asarray(other_rows(hyper.covariance, x, np.arange(5)[None], 4)[0])
    data = Rows(*map(jnp.asarray, (x, y, _stand_ins(likelihood, y))))
    learned, fixed = eqx.partition(hyper, eqx.is_inexact_array)
    flat, structure = jax.tree.flatten(learned)

    @jax.jit
    def value(flat):
        moved = eqx.combine(structure.unflatten(flat), fixed)
        return jnp.sum(log_conditionals(moved, data, rows, near, jnp.asarray(1e-6)))

    for i, gradient in enumerate(jax.grad(value)(flat)):
        for j in np.ndindex(gradient.shape):
            step = np.zeros(gradient.shape)
            step[j] = 1e-5
            up, down = ([*flat[:i], flat[i] + sign * step, *flat[i + 1 :]] for sign in (1.0, -1.0))
            numeric = (value(up) - value(down)) / 2e-5
            np.testing.assert_allclose(gradient[j], numeric, rtol=1e-4, atol=1e-6)


def test_the_nearest_other_rows_are_never_the_row_itself(float64, rng):
    x = np.repeat(rng.normal(size=(10, 2)), 5, axis=0)
    near = other_rows(Matern52(np.ones(2)), x, np.arange(50)[None], 3)[0]
    assert near.shape == (50, 3)
    assert (near != np.arange(50)[:, None]).all()
    np.testing.assert_allclose(x[near], np.repeat(x[:, None], 3, axis=1))


def learned(rng, n=600, again_from=None, noise=0.1):
    x = rng.uniform(-3, 3, size=(n, 2)).astype(np.float32)
    y = (np.sin(2 * x[:, 0]) + noise * rng.normal(size=n) + 2.0).astype(np.float32)
    with precision_scope("float32"):
        hyper = with_precision(
            Hyper(Matern52(np.ones(2)), Gaussian(0.5), jnp.zeros(1), jnp.zeros(()), jnp.zeros(())), "float32"
        )
        data = Rows(jnp.asarray(x), jnp.asarray(y), jnp.asarray(y)[:, None])
        settings = Settings(steps=200, batch_size=128, learning_rate=0.05)
        runs = [run for run, _ in learn(start(hyper), hyper, data, settings, 16, 1e-5)]
        if again_from is not None:
            runs = [run for run, _ in learn(runs[again_from], hyper, data, settings, 16, 1e-5)]
        return eqx.combine(runs[-1].learned, eqx.filter(hyper, eqx.is_inexact_array, inverse=True))


def test_it_finds_the_noise_the_mean_and_which_column_matters(rng):
    hyper = learned(rng)
    assert float(hyper.likelihood.noise) == pytest.approx(0.01, rel=0.5)
    lengthscale = np.asarray(hyper.covariance.lengthscale)
    assert lengthscale[1] > 3 * lengthscale[0]


def test_it_goes_on_from_anywhere_as_if_nothing_had_happened():
    whole = learned(np.random.default_rng(0))
    broken = learned(np.random.default_rng(0), again_from=1)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(broken), strict=True):
        np.testing.assert_array_equal(one, other)
