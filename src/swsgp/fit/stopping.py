"""When to stop, and which model to keep."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from swsgp.errors import NumericalError
from swsgp.fit.settings import Settings
from swsgp.gp.model import SparseGP
from swsgp.gp.prediction import Predictor

Reason = Literal["steps", "time", "patience", "callback", "not finite", "interrupted"]
REASONS: tuple[Reason | None, ...] = (None, *get_args(Reason))


@dataclass(frozen=True)
class Report:
    """The state of training after some steps.

    `bound` is the mean of the mini-batch bounds since the last report, in nats per row; `score` is the mean log
    predictive density of the held-out rows, where there are any and it was their turn.
    """

    step: int
    seconds: float
    bound: float
    score: float | None = None


@dataclass
class HeldOut:
    """Rows kept away from training, and the best model that they have seen."""

    x: np.ndarray
    y: np.ndarray
    best_score: float = -np.inf
    best_model: SparseGP | None = None
    n_worse: int = 0

    def score(self, model: SparseGP) -> float:
        """Mean log predictive density, −∞ if there is none; the model is kept if it is the best so far."""
        try:
            score = float(np.mean(Predictor(model).log_density(self.x, self.y)))
        except NumericalError:
            score = -np.inf
        if score > self.best_score:
            self.best_score, self.best_model, self.n_worse = score, model, 0
        else:
            self.n_worse += 1
        return score


@dataclass
class Clock:
    """Seconds since the start, and those of the run that this one goes on from."""

    before: float = 0.0
    start: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.start

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """What happens meanwhile takes no time."""
        now = time.monotonic()
        try:
            yield
        finally:
            self.start += time.monotonic() - now


def reason_to_stop(settings: Settings, step: int, seconds: float, held_out: HeldOut | None) -> Reason | None:
    """Why training ends now, if it does."""
    if step >= settings.steps:
        return "steps"
    if settings.time_budget is not None and seconds >= settings.time_budget:
        return "time"
    if held_out is not None and settings.patience is not None and held_out.n_worse >= settings.patience:
        return "patience"
    return None
