"""The compiled programs of predictions: latent moments of a chunk of points, and what was asked for of each.

The first few functions take the latent moments of one point to what was asked for; the others are the programs.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from swsgp.gp.likelihoods import Classification, Likelihood, Regression
from swsgp.gp.model import SparseGP
from swsgp.ops.compiled import Structure, jit
from swsgp.ops.local import inverse_factor, joint_covariance, prior_remainder, weights
from swsgp.shapes import Array

# Likelihood, latent mean and variance of one point, and columns of its own, to results.
Finish = Callable[..., tuple[Array, ...]]


def latent(likelihood: Likelihood, mean: Array, variance: Array) -> tuple[Array, ...]:
    return mean, variance


def moments(likelihood: Regression, mean: Array, variance: Array) -> tuple[Array, ...]:
    return likelihood.moments(mean, variance)


def quantile(likelihood: Regression, mean: Array, variance: Array, level: Array) -> tuple[Array, ...]:
    return (likelihood.quantile(level, mean, variance),)


def moments_and_interval(
    likelihood: Regression, mean: Array, variance: Array, low: Array, high: Array
) -> tuple[Array, ...]:
    ends = (likelihood.quantile(level, mean, variance) for level in (low, high))
    return *likelihood.moments(mean, variance), *ends


def probabilities(likelihood: Classification, mean: Array, variance: Array) -> tuple[Array, ...]:
    return (likelihood.probabilities(mean, variance),)


def log_density(likelihood: Likelihood, mean: Array, variance: Array, y: Array) -> tuple[Array, ...]:
    return (likelihood.log_predictive(y, mean, variance),)


def assess_numbers(likelihood: Regression, mean: Array, variance: Array, y: Array) -> tuple[Array, ...]:
    ends = (likelihood.quantile(jnp.asarray(level, mean.dtype), mean, variance) for level in (0.025, 0.975))
    position = likelihood.position(y, mean, variance)
    return *likelihood.moments(mean, variance), *ends, position, likelihood.log_predictive(y, mean, variance)


def assess_classes(likelihood: Classification, mean: Array, variance: Array, y: Array) -> tuple[Array, ...]:
    return likelihood.probabilities(mean, variance), likelihood.log_predictive(y, mean, variance)


# ----------------------------------------------------------------------------------------- one program for a chunk


@partial(jit, constant=("structure", "finish"))
def per_point(
    arrays: list[Array], x: Array, index: Array, others: tuple[Array, ...], structure: Structure, finish: Finish
) -> tuple[Array, tuple[Array, ...]]:
    model: SparseGP = structure.together(arrays)
    seen = model.seen_from(x)

    system = model.own_system(x, index, seen)

    def one(own: Array, a: Array, remainder: Array) -> tuple[Array, Array]:
        return model.variational.marginals(own, a[:, None], remainder[None])

    mean, variance = jax.vmap(one)(index, system.weights, system.remainder)
    return finished(model, *model.whole(mean[:, 0], variance[:, 0], seen), others, finish)


@partial(jit, constant=("structure", "finish"))
def of_moments(
    arrays: list[Array], mean: Array, variance: Array, others: tuple[Array, ...], structure: Structure, finish: Finish
) -> tuple[Array, ...]:
    """The results where the latent moments are known; the arrays are those of the likelihood."""
    likelihood: Likelihood = structure.together(arrays)
    return jax.vmap(lambda *row: finish(likelihood, *row))(mean, variance, *others)


@partial(jit, constant="finish")
def with_all(
    model: SparseGP, factor: Array, x: Array, others: tuple[Array, ...], finish: Finish
) -> tuple[Array, tuple[Array, ...]]:
    mean, variance = conditional(model, factor, x, jnp.arange(len(model.inducing)))
    return finished(model, mean, variance, others, finish)


@partial(jit, constant="finish")
def with_union(
    model: SparseGP, x: Array, index: Array, present: Array, others: tuple[Array, ...], finish: Finish
) -> tuple[Array, tuple[Array, ...]]:
    mean, variance = conditional(model, masked_factor(model, index, present), x, index, present)
    return finished(model, mean, variance, others, finish)


def finished(
    model: SparseGP, mean: Array, variance: Array, others: tuple[Array, ...], finish: Finish
) -> tuple[Array, tuple[Array, ...]]:
    """Which rows are sound, and the results."""
    sound = jnp.isfinite(mean).all(axis=1) & jnp.isfinite(variance).all(axis=1)
    return sound, jax.vmap(lambda *row: finish(model.likelihood, *row))(mean, variance, *others)


@jit
def factor(model: SparseGP) -> tuple[Array, tuple[Array, ...]]:
    factor = inverse_factor(model.k_zz(jnp.arange(len(model.inducing))))
    return jnp.isfinite(factor).all(), (factor,)


@jit
def joint(
    model: SparseGP, factor: Array | None, x: Array, index: Array, present: Array
) -> tuple[Array, tuple[Array, ...]]:
    w = masked_factor(model, index, present) if factor is None else factor
    k_zx = jnp.where(present[:, None], model.covariance.matrix(model.inducing[index], x), 0.0)
    a = weights(w, k_zx)
    mean = a.T @ model.variational.mean[index]
    cov = joint_covariance(w, k_zx, model.covariance.matrix(x, x), model.variational.spread(index, a))
    return jnp.isfinite(mean).all() & jnp.isfinite(cov).all(), (model.around_offset(mean), cov)


@jit
def joint_per_point(
    model: SparseGP, x: Array, own: Array, index: Array, place: Array
) -> tuple[Array, tuple[Array, ...]]:
    """`own` are the points' active sets, `index` their union, and `place` where in it each of `own` is."""
    seen = model.seen_from(x)
    rows = jnp.arange(len(x))[:, None]
    a = jnp.zeros((len(x), len(index)), x.dtype).at[rows, place].add(model.own_system(x, own, seen).weights)
    k_xz, k_xx = model.k_zx(index, x, seen).T, model.covariance.matrix(x, x) - seen @ seen.T
    cross = k_xz @ a.T
    cov = k_xx - cross - cross.T + a @ model.k_zz(index) @ a.T + model.variational.spread(index, a.T)
    cov = 0.5 * (cov + jnp.swapaxes(cov, -1, -2))
    mean, _ = model.whole(a @ model.variational.mean[index], jnp.zeros((len(x), len(cov)), x.dtype), seen)
    if model.landmarks is not None:
        cov = cov + model.landmarks.covariance(seen)
    return jnp.isfinite(mean).all() & jnp.isfinite(cov).all(), (mean, cov)


def conditional(model: SparseGP, w: Array, x: Array, index: Array, present: Array | None = None) -> tuple[Array, Array]:
    k_zx = model.covariance.matrix(model.inducing[index], x)
    if present is not None:
        k_zx = jnp.where(present[:, None], k_zx, 0.0)
    remainder = prior_remainder(w, k_zx, model.covariance.diagonal(x))
    mean, variance = model.variational.marginals(index, weights(w, k_zx), remainder)
    return model.around_offset(mean), variance


def masked_factor(model: SparseGP, index: Array, present: Array) -> Array:
    """The factor of a padded set: padding is independent of everything, so it has no weight in a prediction."""
    both = present[:, None] & present[None, :]
    return inverse_factor(jnp.where(both, model.k_zz(index), jnp.eye(len(index), dtype=model.inducing.dtype)))
