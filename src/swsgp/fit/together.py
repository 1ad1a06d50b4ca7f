"""Several models trained at the same time: the folds of one setting share a program, and fill a GPU."""

import warnings
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from swsgp.data.batches import RowStream
from swsgp.errors import FitWarning, SettingError
from swsgp.fit.loop import MAX_JITTER, MAX_RETRIES, train
from swsgp.fit.progress import ProgressBar
from swsgp.fit.settings import Settings
from swsgp.fit.step import ADAM, Outcome, State, all_finite_each, run_steps_together, split
from swsgp.fit.stopping import Clock, Report
from swsgp.gp.model import SparseGP
from swsgp.ops.compiled import jit
from swsgp.shapes import Array, precision_scope

# Steps in one dispatch.
_CHUNK = 1000


def train_together(
    models: Sequence[SparseGP], data: Sequence[tuple[np.ndarray, np.ndarray]], settings: Settings
) -> list[SparseGP | None]:
    """Models of the same shapes, each trained on inputs and observations of its own as `train` would alone.

    Neighbours are searched in every step, so this is for inducing inputs that move. A model that meets a value that
    is not finite repeats the steps of that dispatch with ten times the jitter and half the rate, which it keeps. If
    that has been tried often enough, it is trained again by `train`, which knows other ways to go on; there is none
    where this gives up as well.
    """
    if not settings.learn_inducing:
        raise SettingError("models are trained together with inducing inputs that move: set learn_inducing=True.")
    clock = Clock()
    with precision_scope(models[0].precision), ProgressBar(settings.steps, settings.progress) as bar:
        learned, fixed = split(_stacked(models), settings.learn_inducing, settings.learn_hyperparameters)
        state = State(learned, jax.vmap(ADAM.init)(learned))
        longest = max(len(y) for _, y in data)
        x, y = (jnp.asarray(np.stack([_to(longest, pair[i]) for pair in data])) for i in (0, 1))
        n_data = jnp.asarray([len(y) for _, y in data], x.dtype)
        streams = [RowStream(len(y), settings.batch_size, settings.seed) for _, y in data]
        is_sound, rate_factor, n_slowed = np.ones(len(models), bool), np.ones(len(models)), np.zeros(len(models), int)
        for first in range(0, settings.steps, _CHUNK):
            n_steps = min(_CHUNK, settings.steps - first)
            batches = jnp.asarray(np.stack([_to(_CHUNK, stream.batches(first, n_steps)) for stream in streams]))
            counts = jnp.asarray(n_steps, jnp.int32), n_data, jnp.asarray(settings.kl_scale, x.dtype)
            outcome: Outcome | None = None
            repeats = is_sound
            for _ in range(1 + MAX_RETRIES):
                rates = jnp.asarray(rate_factor[:, None] * settings.rates(first, _CHUNK), x.dtype)
                again: Outcome = run_steps_together(state, fixed, x, y, None, batches, rates, None, *counts)
                outcome = again if outcome is None else _chosen(repeats, again, outcome)
                ended_well = (np.asarray(outcome.n_good) == n_steps) & np.asarray(all_finite_each(outcome.state))
                repeats = is_sound & ~ended_well
                if not repeats.any():
                    break
                rate_factor = np.where(repeats, 0.5 * rate_factor, rate_factor)
                more = jnp.maximum(fixed.jitter, jnp.minimum(10.0 * fixed.jitter, MAX_JITTER))
                fixed = eqx.tree_at(lambda m: m.jitter, fixed, jnp.where(repeats, more, fixed.jitter))
                n_slowed += repeats
            is_sound = is_sound & ~repeats
            assert outcome is not None
            state = outcome.state
            value = float(np.mean(np.asarray(outcome.bounds)[is_sound])) / n_steps if is_sound.any() else np.nan
            bar.update(Report(first + n_steps, clock.seconds, value))
        trained = eqx.combine(state.learned, fixed)
        apart = [jax.tree.map(lambda leaf, i=i: leaf[i], trained) for i in range(len(models))]
    if n_slowed.any():
        warnings.warn(
            f"{np.sum(n_slowed > 0)} of {len(models)} models met values that are not finite, and went on from the last "
            f"good state with more jitter and half the learning rate, up to {n_slowed.max()} times.",
            FitWarning,
            stacklevel=2,
        )
    return [
        model if was_sound else _alone(start, pair, settings)
        for model, was_sound, start, pair in zip(apart, is_sound, models, data, strict=True)
    ]


def _alone(model: SparseGP, data: tuple[np.ndarray, np.ndarray], settings: Settings) -> SparseGP | None:
    trained = train(model, *data, settings)
    if trained.reason == "interrupted":
        raise KeyboardInterrupt
    return None if trained.reason == "not finite" else trained.model


@jit
def _chosen(which: Array, new: Outcome, old: Outcome) -> Outcome:
    """The new outcome of some models, and the old one of the others."""
    chosen: Outcome = jax.tree.map(
        lambda one, other: jnp.where(which.reshape(-1, *(1,) * (one.ndim - 1)), one, other), new, old
    )
    return chosen


def _stacked(models: Sequence[SparseGP]) -> SparseGP:
    """One model whose arrays have an axis of models in front."""
    stacked: SparseGP = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
    return stacked


def _to(n_rows: int, array: np.ndarray) -> np.ndarray:
    """Lengthened with rows that no batch names."""
    return np.pad(array, [(0, n_rows - len(array))] + [(0, 0)] * (array.ndim - 1))
