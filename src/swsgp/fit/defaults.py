"""What is chosen where the user leaves the choice to the data."""

from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from swsgp.arrays import power_of_two_below
from swsgp.errors import SettingError

AUTO = "auto"
# Rows that are held out to choose the model, at most, and rows below which none are.
_MAX_HELD_OUT = 10_000
_MIN_ROWS_TO_HOLD_OUT = 500
_MIN_INDUCING = 128
# Where q(u) is solved for: neighbours; inducing points, and rows that choose the KL scale, at most; rows from which on
# there are fewer landmarks; and features of landmarks for all rows, at most.
_NEIGHBORS = 32
_MAX_SOLVED = 50_000
_MAX_JUDGES = 2_000
_MANY_ROWS = 20_000
_MAX_FEATURES = 1 << 25
_MIN_LANDMARKS = 32
# What is used in training the other systems, beside the kernel, the likelihood and what prepares the table.
OTHER_SYSTEMS = {
    "full-gp": ("max_steps",),
    "inductive-gps": ("n_inducing", "n_neighbors", "learning_rate", "max_steps"),
    "transductive-gps": ("n_inducing", "n_neighbors", "learning_rate", "max_steps"),
    "dgp-rbf": ("batch_size", "learning_rate", "max_steps"),
}
# What these have no use for, unless named above, and how it looks where it was left out.
UNUSED_IN_OTHER_SYSTEMS: dict[str, Any] = {
    **dict.fromkeys(("n_inducing", "n_neighbors", "n_landmarks", "batch_size", "learning_rate", "kl_scale"), AUTO),
    **dict.fromkeys(("covariance", "learn_inducing", "early_stopping"), AUTO),
    "active": "per-point",
    "preset": "default",
    "time_budget": None,
}
MODELS = ("swsgp", "swsgp-u", "svgp", *OTHER_SYSTEMS)
# The most inducing points where one costs more: with all active, with a full S, or when they move.
_MAX_ALL, _MAX_FULL, _MAX_LEARNED = 256, 512, 1024


@dataclass(frozen=True)
class Choices:
    """The sizes and rates of a model and its training.

    `kl_scale` is None where held-out rows will choose it, and `n_landmarks` is then how many they may choose.
    """

    active: str
    solves: bool
    covariance: str
    learn_inducing: bool
    n_inducing: int
    n_neighbors: int
    n_landmarks: int
    kl_scale: float | None
    batch_size: int
    learning_rate: float
    max_steps: int
    n_held_out: int


def choose(n_rows: int, asked: dict[str, Any], is_gaussian: bool = True) -> Choices:
    """Fill in what is "auto" among the parameters of an estimator, by rules that follow from the number of rows."""
    match asked["model"]:
        case "swsgp":
            pass
        case "swsgp-u":
            asked = asked | {"active": _only(asked, "union")}
        case "svgp":
            full = {"covariance": "full"} if asked["covariance"] == AUTO else {}
            moves = {"learn_inducing": True} if asked["learn_inducing"] == AUTO else {}
            asked = asked | {"active": _only(asked, "all")} | full | moves
        case str(model) if model in OTHER_SYSTEMS:
            return _other_system(n_rows, asked)
        case model:
            raise SettingError(f"model must be one of {', '.join(MODELS)}, got {model!r}.")
    is_local = asked["active"] == "per-point" and asked["covariance"] in (AUTO, "diag")
    match asked["preset"]:
        case "default" if is_local and not _flag(asked, "learn_inducing", False):
            return _solving(n_rows, asked, is_gaussian)
        case "default":
            return _climbing(n_rows, asked)
        case "paper":
            return _paper(n_rows, asked)
    raise SettingError(f"preset must be 'default' or 'paper', got {asked['preset']!r}.")


def for_sample(chosen: Choices, asked: dict[str, Any], n_sample: int) -> Choices:
    """The same where only a sample of the rows is in memory, among which inducing inputs and held-out rows are."""
    if asked["n_inducing"] != AUTO and chosen.n_inducing > n_sample:
        raise SettingError(
            f"n_inducing={chosen.n_inducing:,} inducing inputs start at rows, and there are {n_sample:,}; lower it."
        )
    if asked["n_landmarks"] not in (AUTO, 0):
        raise SettingError("landmarks have features of every row in memory; leave n_landmarks out, or use fit.")
    n_inducing = min(chosen.n_inducing, n_sample)
    return replace(
        chosen,
        n_inducing=n_inducing,
        n_neighbors=min(chosen.n_neighbors, n_inducing) if asked["n_neighbors"] == AUTO else chosen.n_neighbors,
        n_landmarks=0,
        n_held_out=min(chosen.n_held_out, n_sample // 10),
    )


def _solving(n_rows: int, asked: dict[str, Any], is_gaussian: bool) -> Choices:
    """Every row is an inducing input up to 50,000, and 32 of them are active; landmarks do more than more neighbours.

    The KL scale, and whether there are landmarks, is chosen by held-out rows, or by a rule where there are none.
    """
    n_held_out = min(_n_held_out(n_rows, asked, n_rows >= _MIN_ROWS_TO_HOLD_OUT), _MAX_JUDGES)
    n_train = n_rows - n_held_out
    n_inducing = _number(asked, "n_inducing", Integral, lambda: min(n_rows, _MAX_SOLVED))
    if asked["n_landmarks"] != AUTO and _number(asked, "n_landmarks", Integral, None, least=0) > n_rows:
        raise SettingError(
            f"n_landmarks must be at most the number of rows, {n_rows}, got {asked['n_landmarks']}; lower it."
        )
    return Choices(
        active=asked["active"],
        solves=True,
        covariance="diag",
        learn_inducing=False,
        n_inducing=n_inducing,
        n_neighbors=_number(asked, "n_neighbors", Integral, lambda: min(_NEIGHBORS, power_of_two_below(n_inducing))),
        n_landmarks=_number(
            asked, "n_landmarks", Integral, lambda: _auto_landmarks(n_train, is_gaussian) if n_held_out else 0, least=0
        ),
        kl_scale=_number(asked, "kl_scale", Real, lambda: None),
        batch_size=_number(asked, "batch_size", Integral, lambda: min(256, power_of_two_below(n_train))),
        learning_rate=_number(asked, "learning_rate", Real, lambda: 0.05),
        max_steps=_number(asked, "max_steps", Integral, lambda: 200 if n_train < 500 else 400),
        n_held_out=n_held_out,
    )


def _other_system(n_rows: int, asked: dict[str, Any]) -> Choices:
    """As the paper has them: 64 local GPs of 100 rows each; the steps are our own."""
    model = asked["model"]
    for name, left_out in UNUSED_IN_OTHER_SYSTEMS.items():
        if name not in OTHER_SYSTEMS[model] and asked[name] != left_out:
            raise SettingError(f"{name} is of no use for model={model!r}; leave it out.")
        if name in ("n_inducing", "n_neighbors") and asked[name] != AUTO and asked[name] > n_rows:
            raise SettingError(f"{name} must be at most the number of rows, {n_rows}, got {asked[name]}; lower it.")
    is_deep = model == "dgp-rbf"
    return Choices(
        active="all",
        solves=False,
        covariance="full",
        learn_inducing=False,
        n_inducing=_number(asked, "n_inducing", Integral, lambda: min(64, n_rows)),
        n_neighbors=_number(asked, "n_neighbors", Integral, lambda: min(100, n_rows)),
        n_landmarks=0,
        kl_scale=1.0,
        batch_size=_number(asked, "batch_size", Integral, lambda: min(200, n_rows)),
        learning_rate=_number(asked, "learning_rate", Real, lambda: 0.01 if is_deep else 0.05),
        max_steps=_number(
            asked, "max_steps", Integral, lambda: 10_000 if is_deep else 100 if model == "full-gp" else 300
        ),
        n_held_out=0,
    )


def _only(asked: dict[str, Any], active: str) -> str:
    if asked["active"] not in ("per-point", active):
        raise SettingError(
            f"model={asked['model']!r} has active={active!r}, got active={asked['active']!r}; leave one of them out."
        )
    return active


def _auto_landmarks(n_train: int, is_gaussian: bool) -> int:
    """Their features are held for all rows at once, and their products cost a row the square of their number."""
    most = 512 if is_gaussian and n_train <= _MANY_ROWS else min(256, _MAX_FEATURES // n_train)
    most = min(most, n_train // 8)
    return power_of_two_below(most) if most >= _MIN_LANDMARKS else 0


def _paper(n_rows: int, asked: dict[str, Any]) -> Choices:
    """The paper's settings, to the letter."""
    _check_no_landmarks(asked)
    n_inducing = _number(asked, "n_inducing", Integral, lambda: min(128, n_rows))
    return Choices(
        active=asked["active"],
        solves=False,
        covariance="full" if asked["covariance"] == AUTO else asked["covariance"],
        learn_inducing=_flag(asked, "learn_inducing", True),
        n_inducing=n_inducing,
        n_neighbors=_number(asked, "n_neighbors", Integral, lambda: min(16, n_inducing)),
        n_landmarks=0,
        kl_scale=_number(asked, "kl_scale", Real, lambda: 1.0),
        batch_size=_number(asked, "batch_size", Integral, lambda: 64),
        learning_rate=_number(asked, "learning_rate", Real, lambda: 0.001),
        max_steps=_number(asked, "max_steps", Integral, lambda: 300_000),
        n_held_out=_n_held_out(n_rows, asked, False),
    )


def _climbing(n_rows: int, asked: dict[str, Any]) -> Choices:
    """Stochastic gradients, where nothing is solved.

    There are a quarter as many inducing points as rows, and from 16,000 rows on fewer, growing with their square
    root; steps grow with the rows, within limits. The KL scale is M / 2H, where 95% intervals covered most nearly 95%
    on tables of 1,000 to 9,000 rows. Sizes are rounded to few different ones, so that tables of about the same
    length share compiled programs.
    """
    _check_no_landmarks(asked)
    n_held_out = _n_held_out(n_rows, asked, n_rows >= _MIN_ROWS_TO_HOLD_OUT)
    n_train = n_rows - n_held_out
    n_inducing = _number(asked, "n_inducing", Integral, lambda: _auto_inducing(n_train, asked))
    n_neighbors = _number(asked, "n_neighbors", Integral, lambda: min(16, n_inducing))
    local = asked["active"] == "per-point"
    return Choices(
        active=asked["active"],
        solves=False,
        covariance="diag" if asked["covariance"] == AUTO else asked["covariance"],
        learn_inducing=_flag(asked, "learn_inducing", False),
        n_inducing=n_inducing,
        n_neighbors=n_neighbors,
        n_landmarks=0,
        kl_scale=_number(asked, "kl_scale", Real, lambda: max(1.0, n_inducing / (2 * n_neighbors)) if local else 1.0),
        batch_size=_number(asked, "batch_size", Integral, lambda: min(256, power_of_two_below(n_train))),
        learning_rate=_number(asked, "learning_rate", Real, lambda: 0.05 if n_train < 500 else 0.02),
        max_steps=_number(
            asked, "max_steps", Integral, lambda: 1000 if n_train < 500 else min(max(5000, n_train // 100), 20_000)
        ),
        n_held_out=n_held_out,
    )


def _n_held_out(n_rows: int, asked: dict[str, Any], auto: bool) -> int:
    return min(max(1, n_rows // 10), _MAX_HELD_OUT) if _flag(asked, "early_stopping", auto) else 0


def _check_no_landmarks(asked: dict[str, Any]) -> None:
    if asked["n_landmarks"] not in (AUTO, 0):
        raise SettingError(
            "n_landmarks is for active='per-point', a diagonal S and inducing inputs that stay, trained with "
            "preset='default'; leave it out."
        )


def _auto_inducing(n_train: int, asked: dict[str, Any]) -> int:
    size = max(min(n_train, _MIN_INDUCING), min(n_train // 4, int(1000 * (n_train / 1000) ** 0.5)))
    if asked["active"] == "all":
        size = min(size, _MAX_ALL)
    if asked["covariance"] == "full":
        size = min(size, _MAX_FULL)
    if _flag(asked, "learn_inducing", False):
        size = min(size, _MAX_LEARNED)
    # Three leading binary digits.
    return size - size % (1 << max(0, size.bit_length() - 3))


def _flag(asked: dict[str, Any], name: str, auto: bool) -> bool:
    value = asked[name]
    if isinstance(value, str) and value == AUTO:
        return auto
    if not isinstance(value, bool | np.bool_):
        raise SettingError(f"{name} must be 'auto', True or False, got {value!r}.")
    return bool(value)


def _number(asked: dict[str, Any], name: str, kind: type, rule: Any, least: int = 1) -> Any:
    value: Any = asked[name]
    if isinstance(value, str) and value == AUTO:
        return rule()
    is_number: bool = isinstance(value, kind) and not isinstance(value, bool)
    if not (is_number and value >= least if kind is Integral else is_number and value > 0):
        what = f"a whole number, {least} or more" if kind is Integral else "a positive number"
        raise SettingError(f"{name} must be 'auto' or {what}, got {value!r}.")
    return int(value) if kind is Integral else float(value)
