"""Many optimiser steps in one dispatch."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from swsgp.gp.model import SparseGP, bound
from swsgp.ops.compiled import jit
from swsgp.shapes import Array, Float, Int, Scalar


class State(NamedTuple):
    """What a step changes: the learned part of the model, and the optimiser's moments."""

    learned: SparseGP
    moments: Any


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


ADAM = optax.scale_by_adam()


def _run_steps(
    state: State,
    fixed: SparseGP,
    x: Float[Array, "N D"],
    y: Float[Array, " N"],
    neighbours: Int[Array, "N H"] | None,
    batches: Int[Array, "T B"],
    rates: Float[Array, " T"],
    n_steps: Int[Array, ""],
    n_data: Scalar,
    kl_scale: Scalar,
) -> Outcome:
    """The first `n_steps` of `batches`, one optimiser step each with its own learning rate.

    A loop with a bound known only at run time, so that one compiled program serves every number of steps. The table
    may end with rows that no batch names, so that it serves tables of about the same length, too. Neighbours come
    from a table with a row for each data point, or are searched in every step without one.
    """

    def loss(learned: SparseGP, rows: Array) -> Array:
        model = eqx.combine(learned, fixed)
        batch = x[rows]
        index = model.active_set(batch) if neighbours is None else neighbours[rows]
        # Divided by N, which Adam does not notice, so that the numbers stay near 1 in float32.
        return -bound(model, batch, y[rows], index, n_data, kl_scale) / n_data

    def goes_on(carry: tuple[Array, Outcome]) -> Array:
        i, outcome = carry
        return (i < n_steps) & (outcome.n_good == i)

    def step(carry: tuple[Array, Outcome]) -> tuple[Array, Outcome]:
        i, (n_good, (learned, moments), bounds) = carry
        value, gradient = eqx.filter_value_and_grad(loss)(learned, batches[i])
        updates, moments = ADAM.update(gradient, moments)
        updates = jax.tree.map(lambda u: -rates[i] * u, updates)
        state = State(eqx.apply_updates(learned, updates), moments)
        return i + 1, Outcome(n_good + jnp.isfinite(value), state, bounds - value)

    zero = jnp.zeros((), dtype=jnp.int32)
    return jax.lax.while_loop(goes_on, step, (zero, Outcome(zero, state, jnp.zeros((), dtype=x.dtype))))[1]


run_steps = jit(_run_steps)
# The same for several models at once: all but the rates, their number and κ have a leading axis of models.
run_steps_together = jit(jax.vmap(_run_steps, in_axes=(0, 0, 0, 0, None, 0, None, None, 0, None)))


@jit
def all_finite(tree: Any) -> Array:
    """Whether every number in it is finite."""
    return jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]))
