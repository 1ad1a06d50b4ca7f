r"""Likelihoods p(y | f): what an observation says about the latent function.

Each gives, for one observation and $q(f) = N(\mu, v)$: the expected log-probability $E_q \log p(y \mid f)$ of the
bound, the log predictive density $\log E_q p(y \mid f)$, and predictive moments or class probabilities.
`mean` and `variance` always have one entry for each latent function.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, log_ndtr, ndtr, ndtri

from swsgp.arrays import log_parameter
from swsgp.errors import DataError, SettingError
from swsgp.gp.quadrature import (
    crossing,
    expectation,
    log_expectation,
    log_gamma_exceeds,
    log_gamma_mixture,
    normal_draws,
    safe_sqrt,
)
from swsgp.shapes import Array, Float, Parameter, Scalar

Latent = Float[Array, " Q"]
_LOG_2PI = float(np.log(2.0 * np.pi))


class Likelihood(eqx.Module):
    """One observation model."""

    @property
    def n_latent(self) -> int:
        """How many latent functions it reads."""
        return 1

    @abc.abstractmethod
    def expected_log_prob(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        """E log p(y | f) under q(f)."""

    @abc.abstractmethod
    def log_predictive(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        """log E p(y | f) under q(f)."""

    @abc.abstractmethod
    def check(self, y: np.ndarray) -> None:
        """Refuse observations that this likelihood cannot have produced."""


class Regression(Likelihood):
    """A likelihood over numbers."""

    @abc.abstractmethod
    def moments(self, mean: Latent, variance: Latent) -> tuple[Scalar, Scalar]:
        """Mean and variance of a new observation."""

    @abc.abstractmethod
    def cdf(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        """Probability that a new observation is at most y."""

    @abc.abstractmethod
    def quantile(self, level: Scalar, mean: Latent, variance: Latent) -> Scalar:
        """The least number that a new observation is at most with this probability."""

    def position(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        """Where y lies in the predictive distribution, from 0 to 1; uniform if that is right."""
        return self.cdf(y, mean, variance)

    def check(self, y: np.ndarray) -> None:
        """Any finite number will do."""


class Classification(Likelihood):
    """A likelihood over classes 0, 1, …, C-1."""

    n_classes: eqx.AbstractVar[int]

    @abc.abstractmethod
    def probabilities(self, mean: Latent, variance: Latent) -> Float[Array, " C"]:
        """Probability of each class for a new observation; they sum to 1."""

    def check(self, y: np.ndarray) -> None:
        wrong = (y != np.round(y)) | (y < 0) | (y >= self.n_classes)
        if wrong.any():
            raise DataError(
                f"{type(self).__name__} needs labels among 0..{self.n_classes - 1}, got {y[wrong][0]:g} in row "
                f"{int(np.argmax(wrong))}; number the classes from 0 or choose another likelihood."
            )


class Gaussian(Regression):
    r"""$y = f + \epsilon$ with $\epsilon \sim N(0, \sigma^2)$; everything in closed form."""

    log_noise: Parameter

    def __init__(self, noise: float = 0.1):
        self.log_noise = log_parameter("noise", noise)

    @property
    def noise(self) -> Scalar:
        """The noise variance σ²."""
        return jnp.exp(self.log_noise)

    def expected_log_prob(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        return -0.5 * (_LOG_2PI + jnp.log(self.noise) + ((y - mean[0]) ** 2 + variance[0]) / self.noise)

    def log_predictive(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        total = variance[0] + self.noise
        return -0.5 * (_LOG_2PI + jnp.log(total) + (y - mean[0]) ** 2 / total)

    def moments(self, mean: Latent, variance: Latent) -> tuple[Scalar, Scalar]:
        return mean[0], variance[0] + self.noise

    def cdf(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        return ndtr((y - mean[0]) * jax.lax.rsqrt(variance[0] + self.noise))

    def quantile(self, level: Scalar, mean: Latent, variance: Latent) -> Scalar:
        return mean[0] + ndtri(level) * jnp.sqrt(variance[0] + self.noise)


class StudentT(Regression):
    r"""$y = f + s\,t_\nu$: heavy tails, so that single wild observations do not pull the function away.

    The degrees of freedom $\nu$ are fixed, the scale $s$ is learned. The expectation of the log takes 20-point
    quadrature; the predictive density mixes Gaussians over the precision of the noise, which holds in the far tail.
    """

    log_scale: Parameter
    dof: float = eqx.field(static=True)

    def __init__(self, scale: float = 0.3, dof: float = 4.0):
        if not (np.isfinite(dof) and dof > 0):
            raise SettingError(f"dof must be positive and finite, got {dof}; use Gaussian for infinitely many.")
        self.log_scale = log_parameter("scale", scale)
        self.dof = float(dof)

    def _log_prob(self, y: Array, f: Array) -> Array:
        nu = self.dof
        constant = gammaln((nu + 1.0) / 2.0) - gammaln(nu / 2.0) - 0.5 * np.log(nu * np.pi)
        return constant - self.log_scale - 0.5 * (nu + 1.0) * jnp.log1p(((y - f) * jnp.exp(-self.log_scale)) ** 2 / nu)

    def expected_log_prob(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        return expectation(lambda f: self._log_prob(y, f), mean[0], variance[0])

    def log_predictive(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        residual = (y - mean[0]) ** 2

        def log_density(log_precision: Array) -> Array:
            total = variance[0] + jnp.exp(2.0 * self.log_scale - log_precision)
            return -0.5 * (_LOG_2PI + jnp.log(total) + residual / total)

        return log_gamma_mixture(log_density, self.dof / 2.0, self._log_low(residual))

    def _log_low(self, residual: Scalar) -> Scalar:
        """The further out y lies, the smaller the precisions that explain it."""
        return -jnp.log1p(residual * jnp.exp(-2.0 * self.log_scale) / self.dof)

    def moments(self, mean: Latent, variance: Latent) -> tuple[Scalar, Scalar]:
        """The variance is infinite for ν ≤ 2, as that of the noise is."""
        factor = self.dof / (self.dof - 2.0) if self.dof > 2.0 else np.inf
        return mean[0], variance[0] + jnp.exp(2.0 * self.log_scale) * factor

    def cdf(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        offset = y - mean[0]
        return jnp.where(offset > 0, 1.0 - self._tail(-offset, variance[0]), self._tail(offset, variance[0]))

    def _tail(self, offset: Scalar, variance: Scalar) -> Scalar:
        """Probability that a new observation is `offset`, a negative number, or more below its mean."""

        def log_cdf(log_precision: Array) -> Array:
            total = variance + jnp.exp(2.0 * self.log_scale - log_precision)
            return log_ndtr(-jnp.abs(offset) * jax.lax.rsqrt(total))

        return jnp.exp(log_gamma_mixture(log_cdf, self.dof / 2.0, self._log_low(offset**2)))

    def quantile(self, level: Scalar, mean: Latent, variance: Latent) -> Scalar:
        # By symmetry from the lower half, where probabilities have all their digits.
        start = jnp.sqrt(variance[0] + jnp.exp(2.0 * self.log_scale))
        lower = jnp.minimum(level, 1.0 - level)
        distance = crossing(lambda distance: self._tail(-distance, variance[0]) <= lower, start)
        return mean[0] + jnp.where(level < 0.5, -distance, distance)


class Poisson(Regression):
    r"""Counts with rate $e^f$."""

    # With t = f − log y, log p(y | f) = y (t − (eᵗ − 1)) − s(y): the large parts of yf, eᶠ and log y! cancel on
    # paper, not in float32.
    def expected_log_prob(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        t, half = mean[0] - jnp.log(jnp.maximum(y, 1.0)), 0.5 * variance[0]
        return jnp.where(y > 0, y * (t - jnp.expm1(t + half)) - _log_factorial_rest(y), -jnp.exp(mean[0] + half))

    def _log_prob(self, y: Scalar, f: Array) -> Array:
        t = f - jnp.log(jnp.maximum(y, 1.0))
        return jnp.where(y > 0, y * (t - jnp.expm1(t)) - _log_factorial_rest(y), -jnp.exp(f))

    def log_predictive(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        # The mode lies between the prior mean and that of the likelihood, log y.
        reach = 8.0 * jnp.sqrt(variance[0])
        low, high = jnp.minimum(mean[0] - reach, jnp.log(y + 0.5)), jnp.maximum(mean[0], jnp.log(y + 0.5))
        return log_expectation(lambda f: self._log_prob(y, f), mean[0], variance[0], low, high)

    def moments(self, mean: Latent, variance: Latent) -> tuple[Scalar, Scalar]:
        rate = jnp.exp(mean[0] + 0.5 * variance[0])
        return rate, rate + rate**2 * jnp.expm1(variance[0])

    def cdf(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        # P(y ≤ k) = P(G > e^f) for G ~ Gamma(k + 1, 1).
        count = jnp.floor(jnp.maximum(y, 0.0))
        return jnp.where(y < 0, 0.0, log_gamma_exceeds(count + 1.0, mean[0], variance[0]))

    def quantile(self, level: Scalar, mean: Latent, variance: Latent) -> Scalar:
        start = jnp.exp(mean[0]) + 1.0
        return jnp.floor(crossing(lambda y: self.cdf(y, mean, variance) >= level, start))

    def position(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        """The middle of the step that the distribution takes at a count."""
        return 0.5 * (self.cdf(y, mean, variance) + self.cdf(y - 1.0, mean, variance))

    def check(self, y: np.ndarray) -> None:
        wrong = (y != np.round(y)) | (y < 0)
        if wrong.any():
            raise DataError(
                f"Poisson needs counts 0, 1, 2, …, got {y[wrong][0]:g} in row {int(np.argmax(wrong))}; "
                "use Gaussian or StudentT for other numbers."
            )


def _log_factorial_rest(y: Scalar) -> Scalar:
    """log y! − (y log y − y) for counts from 1 on, without the cancellation: Stirling's series from 16 on."""
    small, large = jnp.clip(y, 1.0, 16.0), jnp.maximum(y, 16.0)
    exact = gammaln(small + 1.0) - small * jnp.log(small) + small
    series = 0.5 * (_LOG_2PI + jnp.log(large)) + 1.0 / (12.0 * large) - 1.0 / (360.0 * large**3)
    return jnp.where(y < 16.0, exact, series)


class Bernoulli(Classification):
    r"""Two classes: $p(y{=}1 \mid f)$ is $\Phi(f)$ (probit, the paper's) or $1/(1+e^{-f})$ (logit)."""

    link: str = eqx.field(static=True, default="probit")
    n_classes: int = eqx.field(static=True, default=2, init=False)

    def __check_init__(self) -> None:
        if self.link not in ("probit", "logit"):
            raise SettingError(f"link must be 'probit' or 'logit', got {self.link!r}.")

    def _log_prob(self, signed: Array) -> Array:
        return log_ndtr(signed) if self.link == "probit" else jax.nn.log_sigmoid(signed)

    def expected_log_prob(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        return expectation(self._log_prob, (2.0 * y - 1.0) * mean[0], variance[0])

    def log_predictive(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        signed = (2.0 * y - 1.0) * mean[0]
        if self.link == "probit":
            return log_ndtr(signed * jax.lax.rsqrt(1.0 + variance[0]))
        # Adding log σ moves the mode up, by less than the variance, since its slope is under 1.
        reach = 8.0 * jnp.sqrt(variance[0])
        value = log_expectation(self._log_prob, signed, variance[0], signed - reach, signed + variance[0] + reach)
        return jnp.minimum(value, 0.0)

    def probabilities(self, mean: Latent, variance: Latent) -> Float[Array, " 2"]:
        if self.link == "probit":
            signed = mean[0] * jax.lax.rsqrt(1.0 + variance[0])
            return jnp.stack([ndtr(-signed), ndtr(signed)])
        log_probabilities = jnp.stack([self.log_predictive(jnp.full_like(mean[0], y), mean, variance) for y in (0, 1)])
        return jax.nn.softmax(log_probabilities)


class Softmax(Classification):
    r"""C classes with C latent functions: $p(y{=}c \mid f) = e^{f_c} / \sum_j e^{f_j}$.

    Expectations are averages over 256 fixed quasi-random points in antithetic pairs. The draws are the same for
    every row and step, so the bound is a deterministic function, and linear parts of it are exact.
    """

    n_classes: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if int(self.n_classes) != self.n_classes or self.n_classes < 2:
            raise SettingError(f"n_classes must be a whole number, 2 or more, got {self.n_classes}.")

    @property
    def n_latent(self) -> int:
        return self.n_classes

    def _log_probs(self, mean: Latent, variance: Latent) -> Float[Array, "S C"]:
        draws = jnp.asarray(normal_draws(self.n_classes), dtype=mean.dtype)
        return jax.nn.log_softmax(mean + safe_sqrt(variance) * draws, axis=-1)

    def _log_predictives(self, mean: Latent, variance: Latent) -> Float[Array, " C"]:
        return jax.nn.log_softmax(jax.nn.logsumexp(self._log_probs(mean, variance), axis=0))

    def expected_log_prob(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        return jnp.mean(self._log_probs(mean, variance)[:, y.astype(int)])

    def log_predictive(self, y: Scalar, mean: Latent, variance: Latent) -> Scalar:
        return self._log_predictives(mean, variance)[y.astype(int)]

    def probabilities(self, mean: Latent, variance: Latent) -> Float[Array, " C"]:
        return jnp.exp(self._log_predictives(mean, variance))
