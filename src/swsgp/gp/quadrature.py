"""One-dimensional Gaussian expectations, and nodes for many dimensions."""

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from scipy.special import gammaln, ndtri, polygamma
from scipy.stats import qmc

from swsgp.shapes import Array, Scalar

N_NODES = 20
N_DRAWS = 256


@cache
def _hermite() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and log-weights for the standard normal density."""
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(N_NODES)
    return nodes, np.log(node_weights) - 0.5 * np.log(2.0 * np.pi)


@cache
def normal_draws(n_columns: int) -> np.ndarray:
    """`N_DRAWS` quasi-random standard normal points, in pairs (e, -e): all odd moments are exact."""
    sobol = qmc.Sobol(n_columns, scramble=True, seed=0).random(N_DRAWS // 2)
    half = ndtri(np.clip(sobol, 1e-9, 1.0 - 1e-9))
    return np.concatenate([half, -half])


def safe_sqrt(variance: Array) -> Array:
    """Square root whose derivative at 0 is finite, so that a variance of 0 gives no NaN."""
    return jnp.sqrt(variance + 1e-36)


def expectation(function: Callable[[Array], Array], mean: Scalar, variance: Scalar) -> Scalar:
    """E f(g) for g ~ N(mean, variance), by 20-point Gauss–Hermite quadrature."""
    nodes, log_weights = _hermite()
    values = function(mean + safe_sqrt(variance) * jnp.asarray(nodes, dtype=mean.dtype))
    return jnp.exp(jnp.asarray(log_weights, dtype=mean.dtype)) @ values


def log_expectation(
    log_function: Callable[[Array], Array], mean: Scalar, variance: Scalar, low: Scalar, high: Scalar
) -> Scalar:
    r"""$\log E\,e^{h(g)}$ for g ~ N(mean, variance) and a concave h, also where h is far out in its tail.

    Plain Gauss–Hermite places its nodes around the mean and misses an integrand that is narrow or lies many
    standard deviations away (a large count, a surprising label). Here the nodes follow the integrand: its mode
    is found between `low` and `high` by narrowing a grid, and its width from the curvature there.
    """
    # A narrower density than this is a point: the nodes could not be told apart from the mean.
    floor = jnp.finfo(mean.dtype).eps * (1.0 + jnp.abs(mean))
    variance = jnp.maximum(variance, jax.lax.stop_gradient(floor) ** 2)

    # In offsets from the mean, whose squares keep all their digits.
    def log_integrand(offset: Array) -> Array:
        return log_function(mean + offset) - 0.5 * (offset**2 / variance + jnp.log(2.0 * jnp.pi * variance))

    def narrow(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        grid = jnp.linspace(*bracket, 16)
        best = jnp.argmax(log_integrand(grid))
        return grid[jnp.maximum(best - 1, 0)], grid[jnp.minimum(best + 1, 15)]

    # Each round keeps 2/15 of the bracket. Where the nodes lie does not matter to the value, so nothing is
    # differentiated here.
    bracket = jax.lax.stop_gradient((low - mean, high - mean))
    mode = jax.lax.stop_gradient(sum(jax.lax.fori_loop(0, 16, narrow, bracket)) / 2.0)
    curvature = 1.0 / variance - jax.grad(jax.grad(log_function))(mean + mode)
    width = jax.lax.stop_gradient(jax.lax.rsqrt(jnp.maximum(curvature, 1.0 / variance)))
    nodes, log_weights = (jnp.asarray(part, dtype=mean.dtype) for part in _hermite())
    log_terms = log_integrand(mode + width * nodes) + log_weights + 0.5 * nodes**2
    return jax.nn.logsumexp(log_terms) + jnp.log(width) + 0.5 * jnp.log(2.0 * jnp.pi)


def log_gamma_mixture(log_function: Callable[[Array], Array], shape: float, log_low: Scalar) -> Scalar:
    r"""$\log E\,e^{h(\log\lambda)}$ for λ ~ Gamma(shape, rate = shape), where $e^h$ matters from `log_low` on.

    The trapezoid rule in log λ: the integrand is smooth and falls off exponentially on both sides, so the rule
    converges as fast as a Gaussian one, and unlike that it reaches the far left, which makes heavy tails.
    """
    spread = 8.0 * float(np.sqrt(polygamma(1, shape)))
    low = jnp.minimum(log_low, 0.0) - max(36.0 / shape, spread)
    log_nodes = jnp.linspace(low, min(6.0, spread), 256)
    log_density = shape * (np.log(shape) + log_nodes - jnp.exp(log_nodes)) - gammaln(shape)
    return jax.nn.logsumexp(log_function(log_nodes) + log_density) + jnp.log(log_nodes[1] - log_nodes[0])


def log_gamma_exceeds(shape: Scalar, mean: Scalar, variance: Scalar) -> Scalar:
    r"""$P(\log G > g)$ for $G \sim$ Gamma(shape, 1), with a shape from 1 on, and $g \sim N(\mu, v)$.

    The density of log G in 512 cells. Within a cell it counts as flat, and $P(g < t)$ is averaged exactly, so the
    sum holds for a g that is much wider than log G, much narrower, or a point.
    """
    # log G − log shape has standard deviation about 1/√shape, and a left tail like e^(shape · offset).
    reach = 7.0 / jnp.sqrt(shape)
    edges = jnp.linspace(-(reach + 16.0 / shape), reach, 513)
    middle = 0.5 * (edges[1:] + edges[:-1])
    # offset − (e^offset − 1), whose large parts cancel near 0.
    series = -(middle**2) * (0.5 + middle / 6.0 * (1.0 + middle / 4.0 * (1.0 + middle / 5.0)))
    log_density = shape * jnp.where(jnp.abs(middle) < 0.1, series, middle - jnp.expm1(middle))
    std = jnp.maximum(jnp.sqrt(variance), 1e-3 * (edges[1] - edges[0]))
    z = (edges + jnp.log(shape) - mean) / std
    # The integral of Φ, written so that it does not cancel on the left.
    integral = jnp.where(z > -8.0, z * ndtr(z) + jnp.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi), 0.0)
    below = (integral[1:] - integral[:-1]) / (z[1:] - z[:-1])
    return jnp.clip(jax.nn.softmax(log_density) @ below, 0.0, 1.0)


def crossing(reached: Callable[[Scalar], Array], start: Scalar) -> Scalar:
    """The least number from 0 on where `reached`, false and then true, is true, by doubling `start` and bisecting."""
    high = jax.lax.while_loop(lambda high: ~reached(high) & (high < 1e30), lambda high: 2.0 * high, start)

    def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        is_reached = reached(middle)
        return jnp.where(is_reached, low, middle), jnp.where(is_reached, middle, high)

    return jax.lax.fori_loop(0, 40, halve, (jnp.zeros_like(high), high))[1]
