"""Many optimiser steps in one dispatch."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, PartitionSpec

from swsgp.fit.rows import BETA_1, BETA_2, EPSILON, Rows, all_rows, reach
from swsgp.fit.settings import Settings
from swsgp.fit.shards import AXIS
from swsgp.gp.active import PerPoint
from swsgp.gp.model import SparseGP, bound
from swsgp.gp.variational import Diagonal
from swsgp.ops.compiled import jit
from swsgp.shapes import Array, Float, Int, Scalar


class State(NamedTuple):
    """What a step changes: the learned part of the model, and the optimiser's moments.

    With `rows`, these hold q(u) and its moments, and the others all else.
    """

    learned: SparseGP
    moments: Any
    rows: Rows | None = None


class Outcome(NamedTuple):
    """What some steps led to: how many were good, the state after them, and the sum of their bounds per row.

    Steps end at the first whose bound is not finite; the state is then of no use.
    """

    n_good: Int[Array, ""]
    state: State
    bounds: Scalar


def split(model: SparseGP, learn_inducing: bool, learn_hyperparameters: bool = True) -> tuple[SparseGP, SparseGP]:
    """The part of a model that training changes, and the rest."""
    learned = jax.tree.map(lambda leaf: learn_hyperparameters and eqx.is_inexact_array(leaf), model)
    learned = eqx.tree_at(lambda m: m.variational, learned, jax.tree.map(eqx.is_inexact_array, model.variational))
    learned = eqx.tree_at(lambda m: m.jitter, learned, False)
    learned = eqx.tree_at(lambda m: m.inducing, learned, learn_inducing)
    if model.nearest_by is not None:
        learned = eqx.tree_at(lambda m: m.nearest_by, learned, jax.tree.map(lambda _: False, learned.nearest_by))
    return eqx.partition(model, learned)


ADAM = optax.scale_by_adam(BETA_1, BETA_2, EPSILON)


def begin(model: SparseGP, settings: Settings) -> tuple[State, SparseGP]:
    """The state before the first step, and the part of the model that stays.

    Where each point has some inducing variables of its own, which a table knows, a step reads and writes their rows of
    q(u) alone, so that its time does not depend on M. A full S has whole rows of M numbers.
    """
    learned, fixed = split(model, settings.learn_inducing, settings.learn_hyperparameters)
    has_table = isinstance(model.active, PerPoint) and not settings.learn_inducing
    if not has_table or not isinstance(model.variational, Diagonal) or model.landmarks is not None:
        return State(learned, ADAM.init(learned)), fixed
    learned = _with_variational(learned, fixed.variational)
    return State(learned, ADAM.init(learned), Rows.start(model.variational, *reach(settings, 0, 1))), fixed


def whole_model(state: State, fixed: SparseGP) -> SparseGP:
    """The model that a state stands for."""
    model: SparseGP = eqx.combine(state.learned, fixed)
    return model if state.rows is None else _with_variational(model, all_rows(state.rows))


def slowed(state: State, factor: float) -> State:
    """The same model and moments, before steps whose rates are multiplied by this factor."""
    return state if state.rows is None else state._replace(rows=state.rows.slowed(factor))


def _run_steps(
    state: State,
    fixed: SparseGP,
    x: Float[Array, "N D"],
    y: Float[Array, " N"],
    neighbours: Int[Array, "N H"] | None,
    batches: Int[Array, "T B"],
    rates: Float[Array, " T"],
    next_reach: Float[Array, " T"] | None,
    n_steps: Int[Array, ""],
    n_data: Scalar,
    kl_scale: Scalar,
    axis: str | None = None,
) -> Outcome:
    """The first `n_steps` of `batches`, one optimiser step each with its own learning rate.

    A loop with a bound known only at run time, so that one compiled program serves every number of steps. The table
    may end with rows that no batch names, so that it serves tables of about the same length, too. Neighbours come
    from a table with a row for each data point, or are searched in every step without one. A state with rows needs the
    reach of the step after each, too. With an axis this is one of several devices, each with rows, neighbours and a
    share of each batch of its own; all take the same steps.
    """

    def loss(learned: SparseGP, fixed: SparseGP, index: Array | None, batch: Array) -> Array:
        model = eqx.combine(learned, fixed)
        index = model.active_set(x[batch]) if index is None else index
        # Divided by N, which Adam does not notice, so that the numbers stay near 1 in float32.
        return -bound(model, x[batch], y[batch], index, n_data, kl_scale) / n_data

    value_and_gradient = eqx.filter_value_and_grad(loss)

    def move_rows(rows: Rows, learned: SparseGP, i: Array) -> tuple[Array, SparseGP, Rows]:
        """The loss, its gradient but for q(u), and the rows of q(u) after the step."""
        assert neighbours is not None
        assert next_reach is not None
        index = neighbours[batches[i]]
        active = index.ravel()
        # The model of these inducing variables alone, the active ones of one point after those of another.
        moving = rows.moving(active)
        small = _with_variational(learned, moving.variational)
        constant = eqx.tree_at(lambda m: m.inducing, fixed, fixed.inducing[active])
        value, gradient = value_and_gradient(small, constant, jnp.arange(len(active)).reshape(index.shape), batches[i])
        own, gradient = gradient.variational, _with_variational(gradient, fixed.variational)
        if axis:
            # Every device moves the rows of all.
            value, gradient, active, own = _of_all(value, gradient, active, own, axis)
            moving = rows.moving(active)
        return value, gradient, rows.moved(active, moving, own, next_reach[i])

    def goes_on(carry: tuple[Array, Outcome]) -> Array:
        i, outcome = carry
        return (i < n_steps) & (outcome.n_good == i)

    def step(carry: tuple[Array, Outcome]) -> tuple[Array, Outcome]:
        i, (n_good, (learned, moments, rows), bounds) = carry
        if rows is None:
            index = None if neighbours is None else neighbours[batches[i]]
            value, gradient = value_and_gradient(learned, fixed, index, batches[i])
            if axis:
                value, gradient = mean_of_all((value, gradient), axis)
        else:
            value, gradient, rows = move_rows(rows, learned, i)
        updates, moments = ADAM.update(gradient, moments)
        updates = jax.tree.map(lambda u: -rates[i] * u, updates)
        state = State(eqx.apply_updates(learned, updates), moments, rows)
        return i + 1, Outcome(n_good + jnp.isfinite(value), state, bounds - value)

    zero = jnp.zeros((), dtype=jnp.int32)
    return jax.lax.while_loop(goes_on, step, (zero, Outcome(zero, state, jnp.zeros((), dtype=x.dtype))))[1]


# Numbers of rows of q(u), as devices tell them one another, are exact in float32 up to this.
MOST_ON_SEVERAL = 1 << 24


def mean_of_all(tree: Any, axis: str) -> Any:
    """The mean over devices, as one array: what costs is how often they talk."""
    flat, again = ravel_pytree(tree)
    return again(jax.lax.pmean(flat, axis))


def _of_all(
    value: Scalar, gradient: SparseGP, active: Int[Array, " A"], own: Diagonal, axis: str
) -> tuple[Scalar, SparseGP, Int[Array, " B"], Diagonal]:
    """The means over devices of a loss and of its gradient, and all their active rows with those rows' shares of it.

    Devices talk once, in numbers of one kind.
    """
    flat, again = ravel_pytree((value, gradient))
    packed = jnp.concatenate([active[:, None].astype(flat.dtype), own.mean, own.log_std], axis=1)
    sent = jax.lax.all_gather(jnp.concatenate([flat, packed.ravel()]), axis)
    n_devices = len(sent)
    rows = sent[:, len(flat) :].reshape(-1, packed.shape[1])
    mean, log_std = jnp.split(rows[:, 1:] / n_devices, 2, axis=1)
    value, gradient = again(jnp.mean(sent[:, : len(flat)], axis=0))
    return value, gradient, rows[:, 0].astype(active.dtype), Diagonal(mean, log_std)


def _with_variational(model: SparseGP, variational: Any) -> SparseGP:
    return eqx.tree_at(lambda m: m.variational, model, variational, is_leaf=lambda node: isinstance(node, Diagonal))


run_steps = jit(_run_steps)


@cache
def run_steps_on(mesh: Mesh) -> Callable[..., Outcome]:
    """`run_steps` on several devices: rows, neighbours and batches are divided, all else is on every device."""
    rows, columns, all_of_it = PartitionSpec(AXIS), PartitionSpec(None, AXIS), PartitionSpec()
    specs = (*(all_of_it,) * 2, *(rows,) * 3, columns, *(all_of_it,) * 5)
    steps = partial(_run_steps, axis=AXIS)
    return jit(jax.shard_map(steps, mesh=mesh, in_specs=specs, out_specs=all_of_it, check_vma=False))


# The same for several models at once: all but the number of steps and κ have a leading axis of models.
run_steps_together = jit(jax.vmap(_run_steps, in_axes=(0, 0, 0, 0, None, 0, 0, None, None, 0, None)))


def _all_finite(tree: Any) -> Array:
    """Whether every number in it is finite."""
    return jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]))


all_finite = jit(_all_finite)
# The same of several models, for each of them.
all_finite_each = jit(jax.vmap(_all_finite))
