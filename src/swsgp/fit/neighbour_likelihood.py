r"""Hyper-parameters from the nearest-neighbour likelihood.

The bound is a poor teacher of hyper-parameters: a diagonal posterior pays a large KL against a smooth prior, and so
prefers short lengthscales and much noise. The mean over training rows of

$$ \log p(y_n \mid y \text{ of its } k \text{ nearest other rows}) $$

has no posterior in it. For a Gaussian likelihood each term is a conditional of a $k \times k$ matrix; mini-batches
estimate the mean without bias, at a cost that does not depend on how many rows there are.

Other likelihoods have no such conditional. There the neighbours' observations are replaced by Gaussian stand-ins,
$\gamma t_n = f_n + \epsilon_n$ (t is ±1 for classes, a logarithm for counts), whose gain $\gamma$ and noise are
learned, too; what they say about $f_n$ is put to the test by the true likelihood, $\log E\, p(y_n \mid f_n)$. Under
Student's t observations stand for themselves, cut off far out, with the variance of the noise.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, PartitionSpec

from swsgp import processes
from swsgp.arrays import padded
from swsgp.data.batches import RowStream
from swsgp.fit.settings import Settings
from swsgp.fit.shards import AXIS, Shards
from swsgp.fit.step import mean_of_all
from swsgp.gp.active import SearchInducing
from swsgp.gp.covariances import Covariance
from swsgp.gp.likelihoods import Gaussian, Likelihood, StudentT
from swsgp.ops import fused
from swsgp.ops.compiled import jit
from swsgp.ops.local import conditional
from swsgp.shapes import Array, Float, Int, Scalar

ADAM = optax.scale_by_adam(b2=0.99)
# A row that nothing explains counts for no more than this many nats: a few such rows must not set the noise of all.
_WORST = -100.0
# Neighbours say little about the offset, which must not drift away for it: nats a row for a squared distance of 1.
_DRIFT_WEIGHT = 0.005
# Rows whose mean variance the jitter is relative to.
_FOR_JITTER = 256
# Steps of one dispatch, after which neighbours are searched again.
_AT_ONCE = 64


class Hyper(NamedTuple):
    """What is learned. `log_noise` and `log_gain` are not used where y is its own stand-in: Gaussian, Student's t."""

    covariance: Covariance
    likelihood: Likelihood
    offset: Float[Array, " Q"]
    log_noise: Scalar
    log_gain: Scalar


class Rows(NamedTuple):
    """The training rows: inputs, observations, and their stand-ins, one for each latent function."""

    x: Float[Array, "N D"]
    y: Float[Array, " N"]
    stand_ins: Float[Array, "N Q"]


def noise_of(hyper: Hyper) -> Scalar:
    """The variance of what the neighbours say about the latent function: y, or its stand-in."""
    match hyper.likelihood:
        case Gaussian():
            return hyper.likelihood.noise
        case StudentT(log_scale=log_scale, dof=dof):
            return jnp.exp(2.0 * log_scale) * (dof / (dof - 2.0) if dof > 2.5 else 5.0)
    return jnp.exp(hyper.log_noise)


def log_conditionals(
    hyper: Hyper, data: Rows, rows: Int[Array, " B"], neighbours: Int[Array, "B K"], jitter: Scalar
) -> Float[Array, " B"]:
    """log p(y_n | the neighbours' observations) for some rows."""
    covariance, likelihood = hyper.covariance, hyper.likelihood
    if isinstance(likelihood, Gaussian | StudentT):
        values = data.stand_ins - hyper.offset
    else:
        values = data.stand_ins * jnp.exp(hyper.log_gain)
    # The same for every share of a batch.
    noise = noise_of(hyper) + jitter * jnp.mean(covariance.diagonal(data.x[:_FOR_JITTER]))

    x, z, values = data.x[rows], data.x[neighbours], values[neighbours]
    n_latent = values.shape[2]
    simple = fused.usable(covariance.simple(x.shape[1]), z.shape[1], n_latent, x.dtype, has_variance=False)

    def one(point: Array, z: Array, values: Array) -> tuple[Array, Array]:
        k_zz = covariance.matrix(z, z) + noise * jnp.eye(len(z), dtype=z.dtype)
        given = covariance.matrix(z, point[None]), covariance.diagonal(point[None])
        mean, variance = conditional(k_zz, *given, values)
        return mean[0], jnp.broadcast_to(variance, mean[0].shape)

    if simple is None:
        mean, variance = jax.vmap(one)(x, z, values)
    else:
        known = jnp.zeros((values.shape[0], 0, n_latent), x.dtype)
        mean, variance, _ = fused.local_terms(x, z, simple.packed(noise, 0.0), values, known, simple.kinds)
    return jax.vmap(likelihood.log_predictive)(data.y[rows], hyper.offset + mean, variance)


def _steps(
    learned: Hyper,
    moments: Any,
    fixed: Hyper,
    data: Rows,
    batches: Int[Array, "T B"],
    neighbours: Int[Array, "T B K"],
    rates: Float[Array, " T"],
    n_steps: Int[Array, ""],
    jitter: Scalar,
    centre: Float[Array, " Q"],
    axis: str | None = None,
) -> tuple[Hyper, Any, Scalar]:
    """With an axis this is one of several devices, each with a share of every batch; all take the same steps."""

    # As one vector, Adam is a few operations, and the program is made in two thirds of the time.
    flat, structured = ravel_pytree(learned)

    def loss(flat: Array, rows: Array, near: Array) -> Array:
        learned = structured(flat)
        log_p = log_conditionals(eqx.combine(learned, fixed), data, rows, near, jitter)
        drift = jnp.sum((learned.offset - centre) ** 2)
        return -jnp.mean(jnp.maximum(log_p, _WORST)) + _DRIFT_WEIGHT * drift

    def step(i: Array, carry: tuple[Array, Any, Scalar]) -> tuple[Array, Any, Scalar]:
        flat, moments, total = carry
        value, gradient = jax.value_and_grad(loss)(flat, batches[i], neighbours[i])
        if axis:
            value, gradient = mean_of_all((value, gradient), axis)
        # A factor that fails spoils one batch, not the run.
        gradient = jnp.where(jnp.isfinite(value) & jnp.isfinite(gradient), gradient, 0.0)
        updates, moments = ADAM.update(gradient, moments)
        return flat - rates[i] * updates, moments, total - jnp.where(jnp.isfinite(value), value, 0.0)

    first, second = (ravel_pytree(part)[0] for part in (moments.mu, moments.nu))
    start = flat, moments._replace(mu=first, nu=second), jnp.zeros((), data.x.dtype)
    flat, moments, total = jax.lax.fori_loop(0, n_steps, step, start)
    return structured(flat), moments._replace(mu=structured(moments.mu), nu=structured(moments.nu)), total


_steps_here = jit(_steps)


@cache
def _steps_on(mesh: Mesh) -> Callable[..., tuple[Hyper, Any, Scalar]]:
    """On several devices: batches and their neighbours are divided, all else is on every device."""
    columns, all_of_it = PartitionSpec(None, AXIS), PartitionSpec()
    specs = (*(all_of_it,) * 4, columns, columns, *(all_of_it,) * 4)
    return jit(
        jax.shard_map(partial(_steps, axis=AXIS), mesh=mesh, in_specs=specs, out_specs=all_of_it, check_vma=False)
    )


class Run(NamedTuple):
    """Where learning stands: what is learned, Adam's moments, and steps done."""

    learned: Hyper
    moments: Any
    step: int


def start(hyper: Hyper) -> Run:
    """Before the first step."""
    learned = eqx.filter(hyper, eqx.is_inexact_array)
    # Zeros of the host: on the device each shape would compile a program.
    moments = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(ADAM.init, learned))
    return Run(learned, moments, 0)


def learn(
    run: Run, hyper: Hyper, data: Rows, settings: Settings, n_neighbors: int, jitter: float
) -> Iterator[tuple[Run, float]]:
    """Maximise the nearest-neighbour likelihood by Adam, some steps at a time; gives their mean value per row.

    Neighbours are searched in the metric learned so far, each time for the rows that come up next. What happens next
    depends on the run alone, so learning can stop and go on anywhere.
    """
    x = np.asarray(data.x)
    stream = RowStream(len(x), settings.batch_size, settings.seed)
    shards = Shards(stream.n_lanes)
    steps = _steps_here if shards.mesh is None else _steps_on(shards.mesh)
    fixed = eqx.filter(hyper, eqx.is_inexact_array, inverse=True)
    # Any row may be a neighbour: every device has them all.
    rows = Rows(*shards.everywhere([padded(np.asarray(part)) for part in data]))
    learned, moments, step = run
    while step < settings.steps:
        n_steps = min(_AT_ONCE, settings.steps - step)
        batches = shards.of_batches(stream.batches(step, n_steps))
        neighbours = other_rows(eqx.combine(learned, fixed).covariance, x, batches, n_neighbors)
        rates = settings.rates(step, n_steps).astype(x.dtype)
        pad = _AT_ONCE - n_steps
        batches, neighbours = (np.pad(part, ((0, pad), *((0, 0),) * (part.ndim - 1))) for part in (batches, neighbours))
        numbers = np.pad(rates, (0, pad)), np.int32(n_steps), np.asarray(jitter, x.dtype), hyper.offset
        with processes.waiting():
            outcome = steps(
                *shards.everywhere((learned, moments, fixed)),
                rows,
                shards.split(batches, axis=1),
                shards.split(neighbours, axis=1),
                *shards.everywhere(numbers),
            )
        learned, moments, total = shards.here(outcome)
        step += n_steps
        yield Run(learned, moments, step), float(total) / n_steps


def other_rows(metric: Covariance, x: np.ndarray, batches: np.ndarray, n: int) -> np.ndarray:
    """The n nearest other rows of each row of the batches."""
    rows, place = np.unique(batches, return_inverse=True)
    found = SearchInducing(metric, x, n_approximate=len(rows))(x[rows], n + 1)
    own = found == rows[:, None]
    # Rows that repeat may leave no place for the row itself; then the last one goes.
    own[~own.any(axis=1), -1] = True
    others = found[~own].reshape(len(rows), n)
    return others[place.ravel()].reshape(*batches.shape, n)
