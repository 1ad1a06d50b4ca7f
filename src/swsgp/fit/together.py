"""Several models trained at the same time: the folds of one setting share a program, and fill a GPU."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from swsgp.data.batches import RowStream
from swsgp.errors import SettingError
from swsgp.fit.loop import train
from swsgp.fit.progress import ProgressBar
from swsgp.fit.settings import Settings
from swsgp.fit.step import ADAM, State, all_finite, run_steps_together, split
from swsgp.fit.stopping import Clock, Report
from swsgp.gp.model import SparseGP
from swsgp.shapes import precision_scope

# Steps in one dispatch.
_CHUNK = 1000


def train_together(
    models: Sequence[SparseGP], data: Sequence[tuple[np.ndarray, np.ndarray]], settings: Settings
) -> list[SparseGP]:
    """Models of the same shapes, each trained on inputs and observations of its own as `train` would alone.

    Neighbours are searched in every step, so this is for inducing inputs that move. A model that meets a value that
    is not finite is trained again by `train`, which knows how to go on.
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
        finite = np.ones(len(models), bool)
        for first in range(0, settings.steps, _CHUNK):
            n_steps = min(_CHUNK, settings.steps - first)
            batches = np.stack([_to(_CHUNK, stream.batches(first, n_steps)) for stream in streams])
            rates = jnp.asarray(settings.rates(first, _CHUNK), x.dtype)
            outcome = run_steps_together(
                *(state, fixed, x, y, None, jnp.asarray(batches), rates, None),
                *(jnp.asarray(n_steps, jnp.int32), n_data, jnp.asarray(settings.kl_scale, x.dtype)),
            )
            state = outcome.state
            finite &= np.asarray(outcome.n_good) == n_steps
            bar.update(Report(first + n_steps, clock.seconds, float(jnp.mean(outcome.bounds)) / n_steps))
        trained = eqx.combine(state.learned, fixed)
        apart = [jax.tree.map(lambda leaf, i=i: leaf[i], trained) for i in range(len(models))]
        finite &= [bool(all_finite(model)) for model in apart]
    return [
        model if is_finite else _alone(start, pair, settings)
        for model, is_finite, start, pair in zip(apart, finite, models, data, strict=True)
    ]


def _alone(model: SparseGP, data: tuple[np.ndarray, np.ndarray], settings: Settings) -> SparseGP:
    trained = train(model, *data, settings)
    if trained.reason == "interrupted":
        raise KeyboardInterrupt
    return trained.model


def _stacked(models: Sequence[SparseGP]) -> SparseGP:
    """One model whose arrays have an axis of models in front."""
    stacked: SparseGP = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
    return stacked


def _to(n_rows: int, array: np.ndarray) -> np.ndarray:
    """Lengthened with rows that no batch names."""
    return np.pad(array, [(0, n_rows - len(array))] + [(0, 0)] * (array.ndim - 1))
