"""Training: a model and scaled data in, a trained model out."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from swsgp import processes
from swsgp.arrays import pair_for
from swsgp.data.stores import Store
from swsgp.errors import FitWarning, SettingError
from swsgp.fit.checkpoints import Checkpoints, Snapshot, run_name
from swsgp.fit.neighbours import next_refresh
from swsgp.fit.progress import ProgressBar
from swsgp.fit.rows import reach
from swsgp.fit.settings import Settings
from swsgp.fit.sources import NEVER, InMemory, OnDisk, Window
from swsgp.fit.step import (
    MOST_ON_SEVERAL,
    Outcome,
    State,
    all_finite,
    begin,
    run_steps,
    run_steps_on,
    slowed,
    whole_model,
)
from swsgp.fit.stopping import REASONS, Clock, HeldOut, Reason, Report, reason_to_stop
from swsgp.gp.active import PerPoint, Union
from swsgp.gp.covariances import Covariance
from swsgp.gp.model import SparseGP
from swsgp.shapes import precision_scope

# One dispatch holds at most so many steps, and aims at this many seconds, or at so many times what it takes without
# any: it begins with a copy of the state, which grows with M.
_MAX_CHUNK = 4096
_CHUNK_SECONDS, _TIMES_OVERHEAD = 0.3, 15.0
# A step that turns non-finite is tried again with ten times the jitter, up to a limit, and half the rate, at most
# this often in one place.
MAX_RETRIES = 6
MAX_JITTER = 1e-2
# The way back to the very start is kept open for so many steps.
_KEEPS_START = 64


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
    n_data: int | None = None,
    callback: Callable[[Report, SparseGP], bool | None] | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
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
    n_data
        How many rows these stand for in the bound, if not for themselves alone.
    callback
        Called with a `Report` and the model so far, now and then; returning True ends the training. Its own time is
        not counted.
    checkpoint, resume
        A file that takes the state of the run every 20 seconds and when Ctrl-C ends it, and whether to go on from
        it, if it is there. A run that goes on reaches the model that it would have reached without a break.

    Ctrl-C ends training with the model so far, and "interrupted" as the reason.

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
    x, y = pair_for(x, y, model.inducing.shape[1], model.precision)
    model.likelihood.check(y)
    with precision_scope(model.precision):
        known = _n_neighbors_known(model, settings), isinstance(model.active, Union)
        source = InMemory(x, y, settings.batch_size, settings.seed, *known)
    return _train(model, source, (x, y), settings, held_out, n_data, callback, checkpoint, resume)


def train_from(
    model: SparseGP,
    store: Store,
    settings: Settings,
    *,
    held_out: tuple[np.ndarray, np.ndarray] | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
) -> Trained:
    """As `train`, on rows that lie on disk, a part of them in memory at a time."""
    known = _n_neighbors_known(model, settings), isinstance(model.active, Union)
    source = OnDisk(store, settings.batch_size, settings.seed, *known)
    name = np.frombuffer(store.digest.encode(), np.uint8)
    try:
        return _train(model, source, (name,), settings, held_out, None, None, checkpoint, resume)
    finally:
        source.close()


def _n_neighbors_known(model: SparseGP, settings: Settings) -> int | None:
    """How many neighbours a table has for each row; None if a step searches itself."""
    if not isinstance(model.active, PerPoint) or settings.learn_inducing:
        return None
    return model.active.n_neighbors


def _train(
    model: SparseGP,
    source: InMemory | OnDisk,
    data: tuple[np.ndarray, ...],
    settings: Settings,
    held_out: tuple[np.ndarray, np.ndarray] | None,
    n_data: int | None,
    callback: Callable[[Report, SparseGP], bool | None] | None,
    checkpoint: str | Path | None,
    resume: bool,
) -> Trained:
    """`data` tells one run from another."""
    held = None
    if held_out is not None:
        held = HeldOut(*pair_for(*held_out, model.inducing.shape[1], model.precision))
        model.likelihood.check(held.y)
        data = (*data, held.x, held.y)
    elif settings.patience is not None:
        raise SettingError("patience counts looks at held-out rows; give held_out, or leave patience at None.")
    callers_setting = bool(jax.config.read("jax_enable_x64"))

    def report_to_caller(report: Report, model: SparseGP) -> bool | None:
        with jax.enable_x64(callers_setting):
            return callback(report, model) if callback is not None else None

    with precision_scope(model.precision):
        model = processes.agreed_arrays(model)
    checkpoints = None
    if checkpoint is not None:
        checkpoints = Checkpoints(Path(checkpoint), run_name(model, settings, *data))
    with precision_scope(model.precision):
        reports = callback and report_to_caller
        run = _Run(model, source, settings, held, reports, checkpoints, n_data or source.n_rows)
        if resume and checkpoints is not None:
            run.go_on(checkpoints)
        return run.run()


@dataclass(frozen=True)
class _Anchor:
    """Where a dispatch began, and with which jitter and rate, to go back to any step after it."""

    step: int
    state: State
    fixed: SparseGP
    rate_factor: float


class _Run:
    """One training run: the loop around the compiled steps."""

    def __init__(
        self,
        model: SparseGP,
        source: InMemory | OnDisk,
        settings: Settings,
        held_out: HeldOut | None,
        callback: Callable[[Report, SparseGP], bool | None] | None,
        checkpoints: Checkpoints | None,
        n_data: int,
    ):
        self.settings, self.held_out, self.callback, self.checkpoints = settings, held_out, callback, checkpoints
        self.source, self.n_data = source, n_data
        self.chunk = int(np.clip((1 << 20) // source.batch_size, 16, _MAX_CHUNK))
        state, fixed = begin(model, settings)
        if source.shards.mesh is not None and len(model.inducing) > MOST_ON_SEVERAL:
            raise SettingError(f"several devices can train {MOST_ON_SEVERAL:,} inducing points at most.")
        self.now = _Anchor(0, state, fixed, 1.0)
        # The way back: from a start through every place where jitter and rate were changed.
        self.start, self.changes = self.now, list[_Anchor]()
        self.metric: Covariance | None = None
        self.refresh_at = NEVER if _n_neighbors_known(model, settings) is None else 0
        self.window: Window | None = None
        self.bad_step, self.n_retries, self.first_jitter = -1, 0, fixed.jitter
        self.warned = False
        self.history: list[Report] = []
        shown = settings.progress and processes.is_first()
        self.bar = ProgressBar(settings.steps, shown, settings.time_budget)
        self.clock = Clock()
        self.snapshot, self.n_saved = self._snapshot(), 0

    @property
    def model(self) -> SparseGP:
        return whole_model(self.now.state, self.now.fixed)

    def run(self) -> Trained:
        reason: Reason
        try:
            reason = self._run()
        except KeyboardInterrupt:
            # Of several processes one alone cannot go on.
            if processes.count() > 1:
                raise
            reason = "interrupted"
        if reason == "interrupted" and self.checkpoints is not None:
            self.checkpoints.save(vars(self.snapshot), self.history[: self.n_saved])
        return Trained(self._best_model(), tuple(self.history), reason, self.now.step, self.clock.seconds)

    def _run(self) -> Reason:
        clock, first_step = self.clock, self.now.step
        # The first dispatch compiles; the ones after it tell how long a step takes.
        n_steps, overhead = 1, 0.0
        reason = reason_to_stop(self.settings, self.now.step, clock.seconds, self.held_out)
        with self.bar as bar:
            while True:
                reason, n_steps = self._agreed(reason, n_steps)
                if reason is not None:
                    return reason
                self._refresh_neighbours()
                n_steps = min(n_steps, self.chunk, *self._steps_to_next_event())
                started = clock.seconds
                outcome = self._steps(self.now, n_steps)
                bad_step = self._first_bad_step(outcome, n_steps)
                if bad_step is not None:
                    reason = self._step_back(bad_step)
                    continue
                self._move(outcome.state, self.now.step + n_steps)
                mean_bound = float(outcome.bounds) / n_steps
                if self.now.step > first_step + 1:
                    per_step = max((clock.seconds - started - overhead) / n_steps, 1e-9)
                    n_steps = max(1, min(2 * n_steps, int(max(_CHUNK_SECONDS, _TIMES_OVERHEAD * overhead) / per_step)))
                else:
                    n_steps, overhead = 16, self._overhead()
                report = Report(self.now.step, clock.seconds, mean_bound, self._score())
                self.history.append(report)
                bar.update(report)
                reason = reason_to_stop(self.settings, self.now.step, clock.seconds, self.held_out)
                self.snapshot, self.n_saved = self._snapshot(), len(self.history)
                if self.checkpoints is not None:
                    self.checkpoints.save_now_and_then(vars(self.snapshot), self.history)
                if self.callback is not None:
                    with self.clock.stopped():
                        ends = self.callback(report, self.model)
                    reason = reason or ("callback" if ends else None)

    @staticmethod
    def _agreed(reason: Reason | None, n_steps: int) -> tuple[Reason | None, int]:
        """What the first process has decided by its clock, unless one was interrupted."""
        place, n_steps = processes.agreed(np.array([REASONS.index(reason), n_steps])).tolist()
        return "interrupted" if processes.interrupted() else REASONS[place], n_steps

    def go_on(self, checkpoints: Checkpoints) -> None:
        """Take up the run that the checkpoint is of, if there is one."""
        # The best model and the metric are not there at the start of a run.
        templates = vars(self.snapshot) | {"best_model": self.model, "metric": self.model.metric}
        found = checkpoints.load(templates)
        if found is None:
            return
        saved, history = Snapshot(**found[0]), found[1]
        fixed = eqx.tree_at(lambda m: m.jitter, self.now.fixed, saved.jitter)
        self.now = _Anchor(saved.step, saved.state, fixed, saved.rate_factor)
        self.start, self.changes = self.now, []
        self.metric, self.refresh_at = saved.metric, saved.refresh_at
        self.history, self.clock = history, Clock(before=saved.seconds)
        if self.held_out is not None:
            self.held_out.best_score, self.held_out.n_worse = saved.best_score, saved.n_worse
            self.held_out.best_model = saved.best_model
        self.snapshot, self.n_saved = saved, len(history)

    def _snapshot(self) -> Snapshot:
        held = self.held_out
        return Snapshot(
            step=self.now.step,
            seconds=self.clock.seconds,
            refresh_at=self.refresh_at,
            rate_factor=self.now.rate_factor,
            n_worse=0 if held is None else held.n_worse,
            best_score=-np.inf if held is None else held.best_score,
            state=self.now.state,
            jitter=self.now.fixed.jitter,
            metric=self.metric,
            best_model=None if held is None else held.best_model,
        )

    def _move(self, state: State, step: int) -> None:
        """Go on from a state after a dispatch."""
        before, self.now = self.now, _Anchor(step, state, self.now.fixed, self.now.rate_factor)
        if before.step >= _KEEPS_START:
            self.start, self.changes = before, []

    def _overhead(self) -> float:
        """Seconds that a dispatch takes without any steps, if it does not need other rows first."""
        if self.window is None or not self.window.has(self.now.step):
            return 0.0
        started = self.clock.seconds
        self._first_bad_step(self._steps(self.now, 0), 0)
        return self.clock.seconds - started

    def _steps_to_next_event(self) -> tuple[int, ...]:
        events = [self.settings.steps - self.now.step, self._window_at(self.now.step).stop - self.now.step]
        if self.held_out is not None:
            events.append(self.settings.evaluate_every - self.now.step % self.settings.evaluate_every)
        return tuple(events)

    def _refresh_neighbours(self) -> None:
        """Search anew from here on, if it is time."""
        if self.now.step >= self.refresh_at:
            self.refresh_at = next_refresh(self.now.step)
            # Rounding may have led processes apart.
            self.now = replace(self.now, state=processes.agreed_arrays(self.now.state))
            self.metric, self.window = self.model.metric, None

    def _window_at(self, step: int) -> Window:
        if self.window is None or not self.window.has(step):
            stop = min(self.refresh_at, self.settings.steps)
            # Both may be large: one is let go before the other comes.
            self.window = None
            inducing = np.asarray(self.now.fixed.inducing)
            self.window = self.source.window(step, stop, self.metric, inducing, self._report_search)
        return self.window

    def _report_search(self, share: float) -> None:
        self.bar.say(f"step {self.now.step:,} · finding the nearest inducing inputs of all rows, {share:.0%} done")

    def _score(self) -> float | None:
        if self.held_out is None:
            return None
        due = self.now.step % self.settings.evaluate_every == 0 or self.now.step == self.settings.steps
        return self.held_out.score(self.model) if due else None

    def _best_model(self) -> SparseGP:
        """The model that the held-out rows like best, the last one among them."""
        if self.held_out is None:
            return self.model
        if not self.history or self.history[-1].score is None:
            self.held_out.score(self.model)
        return self.held_out.best_model or self.model

    def _steps(self, start: _Anchor, n_steps: int) -> Outcome:
        window = self._window_at(start.step)
        batches = self.source.batches(start.step, max(n_steps, 1))
        batches = np.pad(batches, ((0, self.chunk - len(batches)), (0, 0)))
        dtype = window.x.dtype
        rates, next_reach = start.rate_factor * self.settings.rates(start.step, self.chunk), None
        if start.state.rows is not None:
            next_reach = (start.rate_factor * reach(self.settings, start.step + 1, self.chunk)).astype(dtype)
        counts = np.int32(n_steps), np.asarray(self.n_data, dtype), np.asarray(self.settings.kl_scale, dtype)
        shards = self.source.shards
        state, fixed, *pace = shards.everywhere((start.state, start.fixed, rates.astype(dtype), next_reach, *counts))
        steps = run_steps if shards.mesh is None else run_steps_on(shards.mesh)
        with processes.waiting():
            outcome = steps(state, fixed, window.x, window.y, window.neighbours, shards.split(batches, axis=1), *pace)
        here: Outcome = shards.here(outcome)
        return here

    def _first_bad_step(self, outcome: Outcome, n_steps: int) -> int | None:
        n_good = int(outcome.n_good)
        if n_good == n_steps and _is_finite(outcome.state):
            return None
        # A gradient may spoil rows of q(u) that no bound looks at until many steps later.
        if _is_finite(self._steps(self.now, n_good).state):
            return self.now.step + n_good
        n_sound, n_spoilt = 0, n_good
        while n_spoilt - n_sound > 1:
            n = (n_sound + n_spoilt) // 2
            n_sound, n_spoilt = (n, n_spoilt) if _is_finite(self._steps(self.now, n).state) else (n_sound, n)
        return self.now.step + n_spoilt

    def _step_back(self, bad_step: int) -> Reason | None:
        """Go back to a state from before a bad step, and go on with more jitter and a lower rate.

        First to the state before the update that led to it, whose own bound was finite; if the same place turns
        bad again, twice as far each time, as far as there is a way back. If that has been tried often enough, the
        model is given back with the jitter it had.
        """
        self.n_retries = self.n_retries + 1 if bad_step <= self.bad_step else 1
        if self.n_retries == 1:
            self.first_jitter = self.now.fixed.jitter
        self.bad_step = max(bad_step, self.bad_step)
        anchors = [self.start, *self.changes, self.now]
        good_step = max(bad_step - (1 << (self.n_retries - 1)), anchors[0].step)
        from_here = [anchor for anchor in anchors if anchor.step <= good_step][-1]
        n_steps = good_step - from_here.step
        state = self._state_after(from_here, n_steps)
        if not _is_finite(state):
            # Past a search for neighbours steps are not quite those that were taken.
            good_step, state = from_here.step, from_here.state
        gives_up = self.n_retries > MAX_RETRIES
        raised = jnp.maximum(self.first_jitter, jnp.minimum(10.0 * self.now.fixed.jitter, MAX_JITTER))
        fixed = eqx.tree_at(lambda m: m.jitter, self.now.fixed, self.first_jitter if gives_up else raised)
        rate_factor = 0.5 * self.now.rate_factor
        state = slowed(state, rate_factor / from_here.rate_factor)
        self.now = _Anchor(good_step, state, fixed, rate_factor)
        self.changes = [*(anchor for anchor in anchors[1:] if anchor.step <= good_step), self.now]
        self._warn_once(bad_step)
        return "not finite" if gives_up else None

    def _state_after(self, start: _Anchor, n_steps: int) -> State:
        """The state some steps after another, which may be of several windows."""
        stop = start.step + n_steps
        while start.step < stop:
            n = min(stop, self._window_at(start.step).stop, start.step + self.chunk) - start.step
            start = replace(start, step=start.step + n, state=self._steps(start, n).state)
        return start.state

    def _warn_once(self, bad_step: int) -> None:
        if self.warned:
            return
        self.warned = True
        warnings.warn(
            f"step {bad_step} gave a value that is not finite; training goes on from the last good state with "
            f"jitter {float(self.now.fixed.jitter):.0e} and half the learning rate.",
            FitWarning,
            stacklevel=5,
        )


def _is_finite(state: State) -> bool:
    """Whether every number in it is finite; processes that train together have the same ones."""
    return bool(processes.agreed(bool(all_finite(state))))
