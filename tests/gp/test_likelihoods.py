"""Likelihoods against dense quadrature, sampling, and closed forms."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from swsgp import Bernoulli, Gaussian, Poisson, Softmax, StudentT
from swsgp.errors import DataError, SettingError


@cache
def compiled(method):
    """One program for each likelihood: a loop would otherwise be compiled again at every call."""
    return jax.jit(lambda likelihood, *arguments: getattr(likelihood, method)(*arguments))


@cache
def with_gradient(method):
    return jax.jit(jax.value_and_grad(compiled(method), (2, 3)))


def ask(method, likelihood, *arguments):
    return compiled(method)(likelihood, *arguments)


def one_dimensional():
    return {
        "gaussian": (Gaussian(0.3), lambda y, f: stats.norm.logpdf(y, f, np.sqrt(0.3)), [0.4, -2.0]),
        "student-t": (StudentT(0.5, 4.0), lambda y, f: stats.t.logpdf(y, 4.0, f, 0.5), [0.4, -2.0]),
        "probit": (Bernoulli("probit"), lambda y, f: stats.norm.logcdf((2 * y - 1) * f), [0.0, 1.0]),
        "logit": (Bernoulli("logit"), lambda y, f: -np.logaddexp(0, -(2 * y - 1) * f), [0.0, 1.0]),
        "poisson": (Poisson(), lambda y, f: stats.poisson.logpmf(y, np.exp(f)), [0.0, 3.0]),
    }


NAMES = list(one_dimensional())
LATENTS = [(0.3, 0.5), (-1.2, 0.01), (0.8, 2.0)]


def dense(function, mean, variance):
    """Integral of function(f) N(f | mean, variance) by adaptive quadrature."""
    std = np.sqrt(variance)
    value, _ = integrate.quad(
        lambda f: function(f) * stats.norm.pdf(f, mean, std), mean - 12 * std, mean + 12 * std, limit=400
    )
    return value


def latent(mean, variance):
    return jnp.asarray([mean]), jnp.asarray([variance])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("mean", "variance"), LATENTS)
def test_expected_log_prob_equals_dense_quadrature(float64, name, mean, variance):
    likelihood, log_prob, observations = one_dimensional()[name]
    for y in observations:
        ours = ask("expected_log_prob", likelihood, jnp.asarray(y), *latent(mean, variance))
        # 20 Gauss–Hermite points are exact to about 1e-4 for the rougher integrands.
        np.testing.assert_allclose(ours, dense(lambda f, y=y: log_prob(y, f), mean, variance), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("mean", "variance"), LATENTS)
def test_log_predictive_equals_dense_quadrature(float64, name, mean, variance):
    likelihood, log_prob, observations = one_dimensional()[name]
    for y in observations:
        ours = ask("log_predictive", likelihood, jnp.asarray(y), *latent(mean, variance))
        expected = np.log(dense(lambda f, y=y: np.exp(log_prob(y, f)), mean, variance))
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_poisson_predictive_holds_for_large_and_surprising_counts(float64):
    """A count of 10,000 is a spike of width 0.01 in f; the mode may lie many standard deviations out."""
    for y, mean, variance in [(10_000.0, 9.0, 1.0), (1000.0, 0.0, 0.01), (0.0, 4.0, 0.5), (0.0, -3.0, 4.0)]:
        ours = float(ask("log_predictive", Poisson(), jnp.asarray(y), *latent(mean, variance)))
        f = np.linspace(mean - 10, np.log(y + 1) + 10, 400_001)
        terms = y * f - np.exp(f) - special.gammaln(y + 1) + stats.norm.logpdf(f, mean, np.sqrt(variance))
        np.testing.assert_allclose(ours, special.logsumexp(terms) + np.log(f[1] - f[0]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dof", [1.0, 3.0, 50.0])
def test_student_t_predictive_holds_far_out_in_the_tail(float64, dof):
    likelihood = StudentT(0.1, dof)
    for y in (0.0, 1.0, 30.0, 1000.0):
        ours = float(ask("log_predictive", likelihood, jnp.asarray(y), *latent(0.0, 0.04)))
        f = np.linspace(-3, 3, 200_001)
        terms = stats.t.logpdf(y, dof, f, 0.1) + stats.norm.logpdf(f, 0.0, 0.2)
        np.testing.assert_allclose(ours, special.logsumexp(terms) + np.log(f[1] - f[0]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dof", [1000.0, 1e6])
def test_student_t_with_many_degrees_of_freedom_is_gaussian(float64, dof):
    for y in (0.0, 0.4, 2.0):
        ours = ask("log_predictive", StudentT(0.5, dof), jnp.asarray(y), *latent(0.1, 0.5))
        np.testing.assert_allclose(ours, stats.norm.logpdf(y, 0.1, np.sqrt(0.75)), atol=5e-3)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_without_variance_the_predictive_density_is_that_at_the_mean(name, precision):
    likelihood, log_prob, observations = one_dimensional()[name]
    with jax.enable_x64(precision == "float64"):
        dtype = jnp.dtype(precision)
        for mean in (-20.0, -3.0, 0.0, 2.0):
            for y in observations:
                ours = ask(
                    "log_predictive",
                    likelihood,
                    jnp.asarray(y, dtype),
                    jnp.asarray([mean], dtype),
                    jnp.asarray([0.0], dtype),
                )
                np.testing.assert_allclose(ours, log_prob(y, mean), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("y", [1.0, 15.0, 16.0, 1e3, 1e5, 1e7])
def test_large_counts_keep_their_digits_in_float32(y):
    mean, variance = np.log(y) + 0.3 / np.sqrt(y), 0.5 / y
    double = []
    with jax.enable_x64(True):
        for method in ("expected_log_prob", "log_predictive"):
            double.append(float(ask(method, Poisson(), jnp.asarray(y), *latent(mean, variance))))
        exact = y * mean - np.exp(mean + variance / 2) - special.gammaln(y + 1)
        np.testing.assert_allclose(double[0], exact, rtol=1e-6)
    mean32, variance32 = jnp.asarray([mean], jnp.float32), jnp.asarray([variance], jnp.float32)
    for method, expected in zip(("expected_log_prob", "log_predictive"), double, strict=True):
        ours = ask(method, Poisson(), jnp.asarray(y, jnp.float32), mean32, variance32)
        np.testing.assert_allclose(ours, expected, atol=0.02)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_finite_in_the_tails(name, precision):
    likelihood, _, observations = one_dimensional()[name]
    with jax.enable_x64(precision == "float64"):
        dtype = jnp.dtype(precision)
        for mean in (-60.0, 0.0, 60.0):
            for variance in (0.0, 1e-8, 20.0):
                for y in observations:
                    for method in ("expected_log_prob", "log_predictive"):
                        arguments = (jnp.asarray(part, dtype) for part in (y, [mean], [variance]))
                        value, gradient = with_gradient(method)(likelihood, *arguments)
                        assert np.isfinite(value), (mean, variance, y, method)
                        assert all(np.isfinite(part).all() for part in gradient), (mean, variance, y, method)


def test_probabilities_match_the_predictive_density_and_sum_to_one(float64):
    for likelihood in (Bernoulli("probit"), Bernoulli("logit")):
        for mean, variance in [*LATENTS, (40.0, 3.0), (-40.0, 3.0)]:
            p = ask("probabilities", likelihood, *latent(mean, variance))
            logs = [ask("log_predictive", likelihood, jnp.asarray(y), *latent(mean, variance)) for y in (0.0, 1.0)]
            np.testing.assert_allclose(p.sum(), 1.0, rtol=1e-12)
            np.testing.assert_allclose(p, np.exp(logs), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("name", ["gaussian", "student-t", "poisson"])
def test_moments_equal_those_of_samples(float64, rng, name):
    likelihood, _, _ = one_dimensional()[name]
    f = rng.normal(0.4, np.sqrt(0.3), size=2_000_000)
    samples = {
        "gaussian": lambda: rng.normal(f, np.sqrt(0.3)),
        "student-t": lambda: f + 0.5 * rng.standard_t(4.0, size=len(f)),
        "poisson": lambda: rng.poisson(np.exp(f)),
    }[name]()
    mean, variance = ask("moments", likelihood, *latent(0.4, 0.3))
    np.testing.assert_allclose(mean, samples.mean(), rtol=0.01)
    np.testing.assert_allclose(variance, samples.var(), rtol=0.05)


def test_student_t_without_a_variance_says_infinity():
    assert np.isinf(ask("moments", StudentT(0.5, 2.0), *latent(0.0, 1.0))[1])


@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_softmax_equals_a_large_sample(float64, rng, n_classes):
    """The estimate from 256 fixed points against a million random ones."""
    likelihood = Softmax(n_classes)
    mean, variance = rng.normal(size=n_classes), rng.uniform(0.05, 1.0, size=n_classes)
    f = rng.normal(mean, np.sqrt(variance), size=(1_000_000, n_classes))
    log_p = f - special.logsumexp(f, axis=1, keepdims=True)
    m, v = jnp.asarray(mean), jnp.asarray(variance)
    for c in range(n_classes):
        y = jnp.asarray(float(c))
        np.testing.assert_allclose(ask("expected_log_prob", likelihood, y, m, v), log_p[:, c].mean(), atol=0.01)
        np.testing.assert_allclose(
            ask("log_predictive", likelihood, y, m, v), np.log(np.exp(log_p[:, c]).mean()), atol=0.02
        )
    np.testing.assert_allclose(ask("probabilities", likelihood, m, v).sum(), 1.0, rtol=1e-12)


def test_softmax_of_two_classes_equals_a_logit_of_the_difference(float64):
    mean, variance = jnp.asarray([0.3, -0.5]), jnp.asarray([0.4, 0.2])
    two = ask("log_predictive", Softmax(2), jnp.asarray(1.0), mean, variance)
    one = ask("log_predictive", Bernoulli("logit"), jnp.asarray(1.0), (mean[1] - mean[0])[None], variance.sum()[None])
    np.testing.assert_allclose(two, one, atol=2e-3)


def test_observations_a_likelihood_cannot_have_produced_are_refused():
    refused = {
        Bernoulli(): [[0.0, 2.0], [0.5], [-1.0]],
        Softmax(3): [[0.0, 3.0], [1.5]],
        Poisson(): [[-1.0], [0.5]],
    }
    for likelihood, cases in refused.items():
        for y in cases:
            with pytest.raises(DataError, match="row"):
                likelihood.check(np.asarray(y))
    Poisson().check(np.asarray([0.0, 7.0]))
    Gaussian().check(np.asarray([-3.5]))


def test_settings_out_of_range_are_refused():
    with pytest.raises(SettingError, match="noise"):
        Gaussian(0.0)
    for dof in (-1.0, float("inf")):
        with pytest.raises(SettingError, match="dof"):
            StudentT(1.0, dof)
    with pytest.raises(SettingError, match="link"):
        Bernoulli("cauchit")
    with pytest.raises(SettingError, match="n_classes"):
        Softmax(1)


CONDITIONAL_CDF = {
    "gaussian": (Gaussian(0.3), lambda y, f: stats.norm.cdf(y, f, np.sqrt(0.3)), 1e-6),
    "student-t": (StudentT(0.5, 4.0), lambda y, f: stats.t.cdf(y, 4.0, f, 0.5), 1e-6),
    "poisson": (Poisson(), lambda y, f: stats.poisson.cdf(y, np.exp(f)), 1e-4),
}


def mixed_cdf(conditional, y, mean, variance):
    z = np.linspace(-9, 9, 20_001)
    weights = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
    return float(weights @ conditional(y, mean + np.sqrt(variance) * z))


@pytest.mark.parametrize("name", CONDITIONAL_CDF)
@pytest.mark.parametrize("variance", [1e-10, 0.01, 0.5, 4.0])
def test_the_predictive_distribution_equals_dense_quadrature(float64, name, variance):
    likelihood, conditional, tolerance = CONDITIONAL_CDF[name]
    for mean in (-0.7, 1.2, 6.0):
        for y in (
            (np.exp(mean) * np.array([0.0, 0.5, 1.0, 2.0])).round() if name == "poisson" else mean + np.arange(-3, 4)
        ):
            ours = float(ask("cdf", likelihood, jnp.asarray(y), *latent(mean, variance)))
            assert ours == pytest.approx(mixed_cdf(conditional, y, mean, variance), abs=tolerance)


@pytest.mark.parametrize("name", CONDITIONAL_CDF)
@pytest.mark.parametrize("level", [0.001, 0.025, 0.5, 0.8, 0.975])
def test_a_quantile_is_the_least_number_that_reaches_its_level(float64, name, level):
    likelihood, conditional, tolerance = CONDITIONAL_CDF[name]
    for mean, variance in ((-1.0, 0.01), (2.0, 0.5), (6.0, 1e-4)):
        found = float(ask("quantile", likelihood, jnp.asarray(level), *latent(mean, variance)))
        below = found - (1 if name == "poisson" else 1e-4)
        assert mixed_cdf(conditional, found, mean, variance) >= level - tolerance
        assert mixed_cdf(conditional, below, mean, variance) <= level + tolerance
        if name == "poisson":
            assert found == round(found)


def test_the_middle_of_a_step_is_the_position_of_a_count():
    low, high = (float(ask("cdf", Poisson(), jnp.asarray(y), *latent(0.5, 0.1))) for y in (2.0, 3.0))
    assert float(ask("position", Poisson(), jnp.asarray(3.0), *latent(0.5, 0.1))) == pytest.approx((low + high) / 2)
    assert float(ask("cdf", Poisson(), jnp.asarray(-1.0), *latent(0.5, 0.1))) == 0.0
