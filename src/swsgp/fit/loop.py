"""Training: a model and scaled data in, a trained model out."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from swsgp.data.batches import RowStream
from swsgp.data.tables import check_pair
from swsgp.errors import FitWarning
from swsgp.fit.neighbours import NeighbourTable, next_refresh
from swsgp.fit.progress import ProgressBar
from swsgp.fit.settings import Settings
from swsgp.fit.step import ADAM, Outcome, State, all_finite, run_steps, split
from swsgp.fit.stopping import Clock, HeldOut, Reason, Report, reason_to_stop
from swsgp.gp.active import PerPoint
from swsgp.gp.model import SparseGP
from swsgp.shapes import Array, precision_scope

# One dispatch holds at most so many steps, and aims at this many seconds.
_MAX_CHUNK = 1024
_CHUNK_SECONDS = 0.3
# A chunk that turns non-finite is tried again with ten times the jitter and half the rate, at most this often.
_MAX_RETRIES = 4


@dataclass(frozen=True)
class Trained:
    """A trained model and how it came about."""

    model: SparseGP
    history: tuple[Report, ...]
    reason: Reason
    steps: int
    seconds: float


def train(
    model: SparseGP,
    x: np.ndarray,
    y: np.ndarray,
    settings: Settings | None = None,
    *,
    held_out: tuple[np.ndarray, np.ndarray] | None = None,
    callback: Callable[[Report], bool | None] | None = None,
) -> Trained:
    """Maximise the bound of a model on scaled data by stochastic gradients.

    Parameters
    ----------
    model
        From `swsgp.create`.
    x, y
        Training inputs (N, D) and observations (N,): numbers, counts, or classes from 0, as the likelihood takes.
    held_out
        Inputs and observations that decide which model is kept and, with `patience`, when to stop.
    callback
        Called with a `Report` now and then; returning True ends the training.

    Examples
    --------
    >>> x = np.linspace(0, 1, 200)[:, None]
    >>> y = np.sin(6 * x[:, 0])
    >>> model = create(x, Matern52(0.3), Gaussian(0.01), PerPoint(4), n_inducing=20)
    >>> trained = train(model, x, y, Settings(steps=500))
    >>> mean, variance = Predictor(trained.model).moments(x)
    >>> bool(np.sqrt(np.mean((mean - y) ** 2)) < 0.1)
    True
    """
    settings = settings or Settings()
    x, y = check_pair(x, y, model.inducing.shape[1], model.precision)
    model.likelihood.check(y)
    held = None
    if held_out is not None:
        held = HeldOut(*check_pair(*held_out, model.inducing.shape[1], model.precision))
        model.likelihood.check(held.y)
    with precision_scope(model.precision):
        return _Run(model, x, y, settings, held, callback).run()


def _padded(rows: np.ndarray) -> np.ndarray:
    """Rows with zeros after them, at most an eighth, up to one of few lengths: tables of about the same length then
    share a compiled program. No mini-batch refers to the padding."""
    step = 1 << max(0, (len(rows) - 1).bit_length() - 3)
    return np.pad(rows, ((0, -len(rows) % step), *((0, 0),) * (rows.ndim - 1)))


class _Run:
    """One training run: the loop around the compiled steps."""

    def __init__(
        self,
        model: SparseGP,
        x: np.ndarray,
        y: np.ndarray,
        settings: Settings,
        held_out: HeldOut | None,
        callback: Callable[[Report], bool | None] | None,
    ):
        self.settings, self.held_out, self.callback = settings, held_out, callback
        self.rows = RowStream(len(x), settings.batch_size, settings.seed)
        self.chunk = int(np.clip((1 << 20) // self.rows.batch_size, 16, _MAX_CHUNK))
        self.x, self.y = jnp.asarray(_padded(x)), jnp.asarray(_padded(y))
        learned, self.fixed = split(model, settings.learn_inducing)
        self.state = State(learned, ADAM.init(learned))
        self.table: NeighbourTable | None = None
        if isinstance(model.active, PerPoint) and not settings.learn_inducing:
            self.table = NeighbourTable(x, model.active.n_neighbors)
        self.neighbours: Array | None = None
        self.refresh_at = 0
        self.rate_factor = 1.0
        self.warned = False
        self.step = 0
        self.history: list[Report] = []

    @property
    def model(self) -> SparseGP:
        return eqx.combine(self.state.learned, self.fixed)

    def run(self) -> Trained:
        clock = Clock()
        n_steps = 1  # The first dispatch compiles; the ones after it tell how long a step takes.
        reason: Reason | None = None
        with ProgressBar(self.settings.steps, self.settings.progress) as bar:
            while reason is None:
                self._refresh_neighbours()
                n_steps = min(n_steps, self.chunk, *self._steps_to_next_event())
                started = clock.seconds
                outcome = self._steps(n_steps)
                if outcome is None:
                    reason = "not finite"
                    break
                self.state = outcome.state
                self.step += n_steps
                per_step = (clock.seconds - started) / n_steps
                n_steps = max(1, min(2 * n_steps, int(_CHUNK_SECONDS / per_step))) if self.step > 1 else 16
                report = Report(self.step, clock.seconds, float(outcome.bound), self._score())
                self.history.append(report)
                bar.update(report)
                reason = reason_to_stop(self.settings, self.step, clock.seconds, self.held_out)
                if self.callback is not None and self.callback(report):
                    reason = reason or "callback"
        best = self.held_out.best_model if self.held_out is not None else None
        return Trained(best or self.model, tuple(self.history), reason, self.step, clock.seconds)

    def _steps_to_next_event(self) -> tuple[int, ...]:
        events = [self.settings.steps - self.step]
        if self.table is not None:
            events.append(self.refresh_at - self.step)
        if self.held_out is not None:
            events.append(self.settings.evaluate_every - self.step % self.settings.evaluate_every)
        return tuple(events)

    def _refresh_neighbours(self) -> None:
        if self.table is None or self.step < self.refresh_at:
            return
        self.refresh_at = next_refresh(self.step)
        n_steps = min(self.refresh_at, self.settings.steps) - self.step
        # Past one epoch every row comes up.
        n_steps_of_epoch = -(-self.rows.n_rows // self.rows.batch_size)
        rows = (
            self.rows.batches(self.step, n_steps).ravel()
            if n_steps < n_steps_of_epoch
            else np.arange(self.rows.n_rows, dtype=np.int32)
        )
        self.neighbours = jnp.asarray(_padded(self.table.refresh(self.model, rows)))

    def _score(self) -> float | None:
        if self.held_out is None:
            return None
        due = self.step % self.settings.evaluate_every == 0 or self.step == self.settings.steps
        return self.held_out.score(self.model) if due else None

    def _steps(self, n_steps: int) -> Outcome | None:
        """The outcome of the next steps; None if it stays non-finite whatever is tried.

        The state before them is kept until they are known to be good, so a bad step spoils nothing.
        """
        batches = np.zeros((self.chunk, self.rows.batch_size), dtype=np.int32)
        batches[:n_steps] = self.rows.batches(self.step, n_steps)
        rates = self.settings.rates(self.step, self.chunk)
        dtype = self.x.dtype
        for _ in range(_MAX_RETRIES + 1):
            outcome = run_steps(
                self.state,
                self.fixed,
                self.x,
                self.y,
                self.neighbours,
                jnp.asarray(batches),
                jnp.asarray(self.rate_factor * rates, dtype),
                jnp.asarray(n_steps, jnp.int32),
                jnp.asarray(self.rows.n_rows, dtype),
                jnp.asarray(self.settings.kl_scale, dtype),
            )
            if bool(all_finite((outcome.state.learned, outcome.bound))):
                return outcome
            self._step_back()
        return None

    def _step_back(self) -> None:
        """Raise the jitter, lower the rate, and say so the first time."""
        self.fixed = eqx.tree_at(lambda m: m.jitter, self.fixed, 10.0 * self.fixed.jitter)
        self.rate_factor *= 0.5
        if not self.warned:
            self.warned = True
            warnings.warn(
                f"a step near step {self.step} gave a value that is not finite; training goes on from the last good "
                f"state with jitter {float(self.fixed.jitter):.0e} and half the learning rate.",
                FitWarning,
                stacklevel=4,
            )
