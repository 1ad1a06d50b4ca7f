"""How to train: one frozen record."""

import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from swsgp.errors import SettingError


@dataclass(frozen=True)
class Settings:
    """Settings of a training run; `Settings.paper()` gives those of the paper.

    Parameters
    ----------
    steps
        Optimiser steps, at most.
    batch_size
        Rows in a mini-batch; all of them if there are fewer.
    learning_rate, schedule
        Adam's rate, and whether it stays ("constant") or falls to 0 at the last of `steps` ("cosine"). A run that
        the time or the held-out rows end earlier has not come down all the way.
    learn_inducing
        Whether inducing inputs move. If they do, their neighbours are searched anew in every step; if not, four
        times while the step count doubles, since the learned lengthscales change who is near.
    learn_hyperparameters
        Whether the covariance, the likelihood and the offset are learned, or q(u) alone.
    kl_scale
        κ in the bound; 1 is the paper's.
    time_budget
        Seconds after which training stops, or None.
    evaluate_every, patience
        Steps between two looks at the held-out rows, and how many looks in a row without a better score end the
        training (None: never). With held-out rows, the model with the best score is the one returned.
    seed
        Fixes the order of the rows. Same seed, same data, same machine: same result.
    progress
        Whether to show progress: a bar on a terminal, a line now and then elsewhere.
    """

    steps: int = 10_000
    batch_size: int = 256
    learning_rate: float = 0.01
    schedule: str = "cosine"
    learn_inducing: bool = False
    learn_hyperparameters: bool = True
    kl_scale: float = 1.0
    time_budget: float | None = None
    evaluate_every: int = 500
    patience: int | None = None
    seed: int = 0
    progress: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "evaluate_every", "patience", "seed"):
            value, least = getattr(self, name), 0 if name == "seed" else 1
            whole = isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least
            if not (whole or (name == "patience" and value is None)):
                raise SettingError(f"{name} must be a whole number, {least} or more, got {value!r}.")
        for name in ("learning_rate", "kl_scale", "time_budget"):
            value = getattr(self, name)
            positive = isinstance(value, numbers.Real) and math.isfinite(value) and float(value) > 0
            if not (positive or (name == "time_budget" and value is None)):
                raise SettingError(f"{name} must be positive and finite, got {value!r}.")
        if self.schedule not in ("constant", "cosine"):
            raise SettingError(f"schedule must be 'constant' or 'cosine', got {self.schedule!r}.")

    @classmethod
    def paper(cls, **changes: Any) -> "Settings":
        """The paper's: Adam at 0.001 for 300,000 steps, mini-batches of 64, inducing inputs learned, κ = 1."""
        paper = {"steps": 300_000, "batch_size": 64, "learning_rate": 0.001, "schedule": "constant"}
        return cls(**{**paper, "learn_inducing": True, **changes})

    def rates(self, first: int, n_steps: int) -> np.ndarray:
        """Learning rates of some consecutive steps."""
        if self.schedule == "constant":
            return np.full(n_steps, self.learning_rate)
        done = np.minimum(np.arange(first, first + n_steps) / self.steps, 1.0)
        return self.learning_rate * 0.5 * (1.0 + np.cos(np.pi * done))
