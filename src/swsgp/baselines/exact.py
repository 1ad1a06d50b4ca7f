r"""Full GP: exact inference, at a cost that grows with the cube of the number of rows.

With $K = k(X, X) + \sigma^2 I$ and the residuals $r = y - c$ around a constant mean,

$$ \log p(y) = -\tfrac12 (r^\top K^{-1} r + \log|K| + N \log 2\pi), \qquad
   f(x) \mid y \sim N(c + k^\top K^{-1} r,\; k_{xx} - k^\top K^{-1} k). $$
"""

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_solve, solve_triangular
from scipy.optimize import minimize

from swsgp.arrays import inputs_for, pair_for, power_of_two_below
from swsgp.baselines.predictive import in_chunks
from swsgp.errors import NumericalError, SettingError
from swsgp.fit.progress import ProgressBar
from swsgp.fit.stopping import Clock, Report
from swsgp.gp.covariances import Covariance, Matern52, check_columns, sensitivity
from swsgp.gp.likelihoods import Gaussian
from swsgp.gp.model import with_precision
from swsgp.ops.compiled import jit
from swsgp.ops.local import inverse_factor
from swsgp.ops.products import product
from swsgp.shapes import Array, Float, Parameter, Scalar, precision_scope

# Relative to the mean of the diagonal: keeps K positive definite where a function has no noise.
JITTER = 1e-8
# How far the logarithm of a hyper-parameter may go from where it starts.
_REACH = 12.0
# Numbers of k(X, x) held at once: 128 MB.
_MAX_NUMBERS = 1 << 24
_LOG_2PI = float(np.log(2.0 * np.pi))


class Prior(eqx.Module):
    """What a GP says before it has seen data: its covariance, the noise of observations, and a constant mean."""

    covariance: Covariance
    likelihood: Gaussian
    offset: Parameter

    def observed(self, x: Float[Array, "N D"]) -> Float[Array, "N N"]:
        """Covariance of observations, with jitter."""
        k_xx = self.covariance.matrix(x, x)
        noise = self.likelihood.noise + JITTER * jnp.mean(jnp.diagonal(k_xx))
        return k_xx + noise * jnp.eye(len(x), dtype=k_xx.dtype)

    def log_marginal_likelihood(self, x: Float[Array, "N D"], y: Float[Array, " N"]) -> Scalar:
        """log p(y), to be differentiated."""
        return log_density(self.observed(x), y - self.offset)


class Conditioned(NamedTuple):
    """The factor of K, and K⁻¹r."""

    chol: Float[Array, "N N"]
    weights: Float[Array, " N"]


class FullGP(eqx.Module):
    """A GP with its training rows."""

    prior: Prior
    x: Float[Array | np.ndarray, "N D"]
    y: Float[Array | np.ndarray, " N"]

    @property
    def likelihood(self) -> Gaussian:
        return self.prior.likelihood

    def latent(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of f at each point, (len(x), 1) each."""
        x = inputs_for(x, self.x.shape[1], "float64")
        n_rows = max(1, _MAX_NUMBERS // len(self.x))
        with precision_scope("float64"):
            return in_chunks(
                lambda chunk: _latent(self.prior, self.x, self._conditioned, chunk), x, power_of_two_below(n_rows)
            )

    def joint(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean (len(x), 1) and covariance (1, len(x), len(x)) of f over all points together."""
        x = inputs_for(x, self.x.shape[1], "float64")
        with precision_scope("float64"):
            mean, cov = _joint(self.prior, self.x, self._conditioned, x)
            return np.asarray(mean), np.asarray(cov)

    def sensitivity(self) -> np.ndarray:
        """How fast the function varies along each column."""
        return sensitivity(self.prior.covariance, self.x.shape[1])

    def log_marginal_likelihood(self) -> float:
        """log p(y) of the training rows."""
        chol, weights = self._conditioned
        residual = np.asarray(self.y) - float(self.prior.offset)
        half_log_det = np.sum(np.log(np.diagonal(np.asarray(chol))))
        return float(-0.5 * (residual @ np.asarray(weights) + len(residual) * _LOG_2PI) - half_log_det)

    @cached_property
    def _conditioned(self) -> Conditioned:
        with precision_scope("float64"):
            conditioned: Conditioned = _condition(self.prior, self.x, self.y)
        if not np.isfinite(conditioned.weights).all():
            raise NumericalError("the covariance matrix of the training rows has no factor; check for extreme values.")
        return conditioned


def fit_full_gp(
    x: np.ndarray,
    y: np.ndarray,
    *,
    covariance: Covariance | None = None,
    noise: float = 0.1,
    n_learning: int = 2000,
    max_rows: int = 12_000,
    max_steps: int = 100,
    seed: int = 0,
    progress: bool = False,
    callback: Callable[[Report], None] | None = None,
) -> FullGP:
    """Exact GP regression, in float64.

    Parameters
    ----------
    x, y
        Scaled inputs (N, D) and standardised observations (N,).
    covariance, noise
        Where learning starts; by default Matérn-5/2 with a lengthscale for each column, and a noise variance of 0.1.
    n_learning
        Hyper-parameters maximise the marginal likelihood of so many rows, chosen at random; of all, if there are
        fewer. All rows are conditioned on.
    max_rows
        More rows are refused. Memory grows with the square of the rows, time with the cube.
    max_steps, callback
        Iterations of L-BFGS, at most, and what is told of each.

    Examples
    --------
    >>> from swsgp.baselines.exact import fit_full_gp
    >>> x = np.linspace(-2, 2, 30)[:, None]
    >>> model = fit_full_gp(x, np.sin(3 * x[:, 0]))
    >>> mean, variance = model.latent(np.array([[0.5]]))
    >>> round(float(mean[0, 0]), 2)
    1.0
    """
    x, y = pair_for(x, y, np.shape(x)[-1], "float64")
    if len(x) > max_rows:
        raise SettingError(
            f"a full GP takes at most {max_rows} rows, got {len(x)}; give a random subset of the rows, or use "
            "model='swsgp', which takes any number."
        )
    rows = np.arange(len(x))
    if len(x) > n_learning:
        rows = np.sort(np.random.default_rng(seed).choice(len(x), n_learning, replace=False))
    prior = starting_prior(covariance, noise, x.shape[1])
    with precision_scope("float64"):
        prior = _learn(prior, x[rows], y[rows], max_steps, progress, callback)
        return FullGP(prior, jnp.asarray(x), jnp.asarray(y))


def starting_prior(covariance: Covariance | None, noise: float, n_columns: int) -> Prior:
    """Where learning starts, in float64. Distances grow with the root of the number of columns; so do lengthscales."""
    covariance = Matern52(np.full(n_columns, np.sqrt(n_columns))) if covariance is None else covariance
    check_columns(covariance, n_columns)
    return with_precision(Prior(covariance, Gaussian(noise), np.zeros(())), "float64")


def _learn(
    prior: Prior,
    x: np.ndarray,
    y: np.ndarray,
    max_steps: int,
    progress: bool,
    callback: Callable[[Report], None] | None,
) -> Prior:
    """The prior with the largest marginal likelihood, by L-BFGS."""
    flat, unravel = ravel_pytree(prior)
    start = np.asarray(flat)
    clock, n_done = Clock(), 0

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _loss(unravel(jnp.asarray(flat)), x, y)
        return float(value), np.asarray(ravel_pytree(gradient)[0])

    with ProgressBar(max_steps, progress) as bar:

        def done(intermediate_result: object) -> None:
            nonlocal n_done
            n_done += 1
            report = Report(n_done, clock.seconds, -float(getattr(intermediate_result, "fun", np.nan)))
            bar.update(report)
            if callback is not None:
                callback(report)

        found = minimize(
            loss,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(start - _REACH, start + _REACH, strict=True)),
            callback=done,
            options={"maxiter": max_steps},
        )
    if not np.isfinite(found.fun):
        raise NumericalError("the marginal likelihood is not finite; check the inputs for extreme values.")
    return unravel(jnp.asarray(found.x))


# ------------------------------------------------------------------------------------------------- compiled parts


@jax.custom_vjp
def log_density(cov: Float[Array, "N N"], residual: Float[Array, " N"]) -> Scalar:
    r"""$\log N(r \mid 0, K)$, with the gradient $\tfrac12(\alpha\alpha^\top - K^{-1})$, $\alpha = K^{-1}r$.

    One factorisation gives both.
    """
    return _log_density_forward(cov, residual)[0]


def _log_density_forward(cov, residual):  # type: ignore[no-untyped-def]
    w = inverse_factor(cov)
    half = w @ residual
    value = jnp.sum(jnp.log(jnp.diagonal(w))) - 0.5 * (half @ half + len(residual) * _LOG_2PI)
    return value, (w, half)


def _log_density_backward(saved, g):  # type: ignore[no-untyped-def]
    w, half = saved
    weights = w.T @ half
    return 0.5 * g * (jnp.outer(weights, weights) - product(w.T, w)), -g * weights


log_density.defvjp(_log_density_forward, _log_density_backward)


@jit
def _loss(prior: Prior, x: Float[Array, "N D"], y: Float[Array, " N"]) -> tuple[Scalar, Prior]:
    """What learning minimises, in nats per row, and its gradient."""
    return jax.value_and_grad(lambda prior: -prior.log_marginal_likelihood(x, y) / len(x))(prior)


@jit
def _condition(prior: Prior, x: Float[Array, "N D"], y: Float[Array, " N"]) -> Conditioned:
    chol = jnp.linalg.cholesky(prior.observed(x), symmetrize_input=False)
    return Conditioned(chol, cho_solve((chol, True), y - prior.offset))


@jit
def _latent(
    prior: Prior, x: Float[Array, "N D"], conditioned: Conditioned, points: Float[Array, "B D"]
) -> tuple[Float[Array, "B 1"], Float[Array, "B 1"]]:
    mean, half = _explained(prior, x, conditioned, points)
    variance = prior.covariance.diagonal(points) - jnp.sum(half**2, axis=0)
    return mean[:, None], jnp.maximum(variance, 0.0)[:, None]


@jit
def _joint(
    prior: Prior, x: Float[Array, "N D"], conditioned: Conditioned, points: Float[Array, "B D"]
) -> tuple[Float[Array, "B 1"], Float[Array, "1 B B"]]:
    mean, half = _explained(prior, x, conditioned, points)
    cov = prior.covariance.matrix(points, points) - half.T @ half
    return mean[:, None], 0.5 * (cov + cov.T)[None]


def _explained(
    prior: Prior, x: Float[Array, "N D"], conditioned: Conditioned, points: Float[Array, "B D"]
) -> tuple[Float[Array, " B"], Float[Array, "N B"]]:
    """Posterior mean, and a root of the covariance that the rows explain."""
    k_xp = prior.covariance.matrix(x, points)
    return k_xp.T @ conditioned.weights + prior.offset, solve_triangular(conditioned.chol, k_xp, lower=True)
