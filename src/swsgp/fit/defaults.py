"""What is chosen where the user leaves the choice to the data."""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from swsgp.errors import SettingError

AUTO = "auto"
# Rows that are held out to choose the model, at most, and rows below which none are.
_MAX_HELD_OUT = 10_000
_MIN_ROWS_TO_HOLD_OUT = 500
_MIN_INDUCING = 128
# The most inducing points where one costs more: with all active, with a full S, or when they move.
_MAX_ALL, _MAX_FULL, _MAX_LEARNED = 256, 512, 1024


@dataclass(frozen=True)
class Choices:
    """The sizes and rates of a model and its training."""

    n_inducing: int
    n_neighbors: int
    kl_scale: float
    batch_size: int
    learning_rate: float
    max_steps: int
    n_held_out: int


def choose(n_rows: int, asked: dict[str, Any]) -> Choices:
    """Fill in what is "auto" among the parameters of an estimator, by rules that follow from the number of rows.

    There are a quarter as many inducing points as rows, and from 16,000 rows on fewer, growing with their square
    root; steps grow with the rows, within limits. The KL scale is M / 2H, where 95% intervals covered most nearly 95%
    on tables of 1,000 to 9,000 rows. Sizes are rounded to few different ones, so that tables of about the same
    length share compiled programs.
    """
    n_held_out = _n_held_out(n_rows, asked["early_stopping"])
    n_train = n_rows - n_held_out
    n_inducing = _number(asked, "n_inducing", Integral, lambda: _auto_inducing(n_train, asked))
    n_neighbors = _number(asked, "n_neighbors", Integral, lambda: min(16, n_inducing))
    local = asked["active"] == "per-point"
    return Choices(
        n_inducing=n_inducing,
        n_neighbors=n_neighbors,
        kl_scale=_number(asked, "kl_scale", Real, lambda: max(1.0, n_inducing / (2 * n_neighbors)) if local else 1.0),
        batch_size=_number(asked, "batch_size", Integral, lambda: min(256, 1 << (n_train.bit_length() - 1))),
        learning_rate=_number(asked, "learning_rate", Real, lambda: 0.05 if n_train < 500 else 0.02),
        max_steps=_number(
            asked, "max_steps", Integral, lambda: 1000 if n_train < 500 else min(max(5000, n_train // 100), 20_000)
        ),
        n_held_out=n_held_out,
    )


def _n_held_out(n_rows: int, early_stopping: Any) -> int:
    if not (
        isinstance(early_stopping, bool | np.bool_) or (isinstance(early_stopping, str) and early_stopping == AUTO)
    ):
        raise SettingError(f"early_stopping must be 'auto', True or False, got {early_stopping!r}.")
    if not early_stopping or (early_stopping == AUTO and n_rows < _MIN_ROWS_TO_HOLD_OUT):
        return 0
    return min(max(1, n_rows // 10), _MAX_HELD_OUT)


def _auto_inducing(n_train: int, asked: dict[str, Any]) -> int:
    size = max(min(n_train, _MIN_INDUCING), min(n_train // 4, int(1000 * (n_train / 1000) ** 0.5)))
    if asked["active"] == "all":
        size = min(size, _MAX_ALL)
    if asked["covariance"] == "full":
        size = min(size, _MAX_FULL)
    if asked["learn_inducing"]:
        size = min(size, _MAX_LEARNED)
    # Three leading binary digits.
    return size - size % (1 << max(0, size.bit_length() - 3))


def _number(asked: dict[str, Any], name: str, kind: type, rule: Any) -> Any:
    value: Any = asked[name]
    if isinstance(value, str) and value == AUTO:
        return rule()
    is_number: bool = isinstance(value, kind) and not isinstance(value, bool)
    if not (is_number and value > 0):
        what = "a whole number, 1 or more" if kind is Integral else "a positive number"
        raise SettingError(f"{name} must be 'auto' or {what}, got {value!r}.")
    return int(value) if kind is Integral else float(value)
