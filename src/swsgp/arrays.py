"""From what a user has to arrays and parameters that can be computed with, or an error that names what is wrong."""

from numbers import Real
from typing import Any

import numpy as np

from swsgp.errors import DataError, SettingError

_MAX_NAMED = 5


def as_inputs(x: Any, what: str = "inputs") -> np.ndarray:
    """Inputs as a float64 array (N, D) with every value finite."""
    names = [str(name) for name in getattr(x, "column_names", getattr(x, "columns", []))]
    array = _as_numbers(x, names, what)
    if array.ndim != 2:
        advice = "; use x[:, None] for a single column." if array.ndim == 1 else "."
        raise DataError(f"{what} must have two axes, rows and columns, got an array of shape {array.shape}{advice}")
    if 0 in array.shape:
        raise DataError(f"{what} must have at least one row and one column, got shape {array.shape}.")
    check_finite(array, names, what)
    return array


def as_target(y: Any, what: str = "target") -> np.ndarray:
    """Observations as a float64 array (N,) with every value finite."""
    array = _as_numbers(y, [], what)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{what} must have one value for each row, got an array of shape {array.shape}.")
    if len(array) == 0:
        raise DataError(f"{what} must have at least one value, got none.")
    check_finite(array[:, None], [what], what)
    return array


def inputs_for(x: Any, n_columns: int, precision: str) -> np.ndarray:
    """Inputs with the number of columns that a model has, in its precision."""
    x = as_inputs(x)
    if x.shape[1] != n_columns:
        raise DataError(f"inputs must have {n_columns} columns, as in training, got {x.shape[1]}.")
    return in_precision(x, precision)


def pair_for(x: Any, y: Any, n_columns: int, precision: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs as `inputs_for`, and as many observations."""
    x, y = inputs_for(x, n_columns, precision), in_precision(as_target(y), precision)
    if len(x) != len(y):
        raise DataError(f"inputs and target must have as many rows, got {len(x)} and {len(y)}.")
    return x, y


def in_precision(array: np.ndarray, precision: str) -> np.ndarray:
    """The array in this precision, unless a value is too large for it."""
    if array.dtype == precision:
        return array
    with np.errstate(over="ignore"):
        narrow = array.astype(precision)
    if not np.isfinite(narrow).all():
        raise DataError(f"a value is too large for {precision}; scale the data or use precision='float64'.")
    return narrow


def power_of_two_below(n: int) -> int:
    """The largest power of two that is at most n."""
    return 1 << (n.bit_length() - 1)


def to_power_of_two(rows: np.ndarray) -> np.ndarray:
    """Rows up to a power of two of them, so that few programs are compiled; the last one is repeated."""
    return to_length(rows, 1 << (len(rows) - 1).bit_length())


def to_length(rows: np.ndarray, length: int) -> np.ndarray:
    """Rows up to some number of them; the last one is repeated."""
    return rows if length == len(rows) else np.concatenate([rows, rows[-1:].repeat(length - len(rows), 0)])


def padded(rows: np.ndarray) -> np.ndarray:
    """Rows with zeros after them, up to one of few lengths, so that few programs are compiled; at most an eighth."""
    return np.pad(rows, ((0, padded_length(len(rows)) - len(rows)), *((0, 0),) * (rows.ndim - 1)))


def padded_length(n: int) -> int:
    """The length that so many rows are padded to."""
    return n + -n % (1 << max(0, (n - 1).bit_length() - 3))


def check_finite(array: np.ndarray, names: list[str], what: str) -> None:
    """Refuse NaN and infinite values, naming the columns that have them."""
    if np.isfinite(array).all():
        return
    n_bad = (~np.isfinite(array)).sum(axis=0)
    raise DataError(
        f"{what} must be finite, got {n_bad.sum()} NaN or infinite values in "
        f"{name_columns(np.flatnonzero(n_bad), names)}; drop or fill those rows."
    )


def log_parameter(name: str, value: object) -> np.ndarray:
    """A positive parameter as its logarithm, in float64 until a model takes it into its own precision."""
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if not np.all((array > 0) & np.isfinite(array)):
        raise SettingError(f"{name} must be positive and finite, got {value!r}.")
    return np.log(array, out=array)


def _as_numbers(values: Any, names: list[str], what: str) -> np.ndarray:
    try:
        array = np.ma.filled(values.astype(np.float64), np.nan) if np.ma.isMaskedArray(values) else np.asarray(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} must be a table of numbers with rows of one length, got {error}.") from None
    if array.dtype.kind in "buif":
        return array.astype(np.float64, copy=False)
    if array.dtype.kind == "O" and array.ndim <= 2:
        columns = array.reshape(len(array), -1) if array.ndim else array.reshape(1, 1)
        bad = [j for j in range(columns.shape[1]) if not all(_is_number(value) for value in columns[:, j])]
        if not bad:
            return np.array([[_as_float(v) for v in row] for row in columns], dtype=np.float64).reshape(array.shape)
        found = f"text or other objects in {name_columns(bad, names)}"
    else:
        found = f"values of type {array.dtype}"
    raise DataError(f"{what} must be numbers, got {found}; encode or drop them.")


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, (Real, np.bool_)) or type(value).__name__ == "NAType"


def _as_float(value: Any) -> float:
    """None and pandas' missing value are NaN, which is refused later with the name of the column."""
    try:
        return float(value) if isinstance(value, (Real, np.bool_)) else float("nan")
    except OverflowError:
        return float("inf")


def name_columns(columns: Any, names: list[str]) -> str:
    """Some columns by name, or by number if they have none: "columns a, b and 3 more"."""
    shown = [names[j] if names else str(j) for j in columns[:_MAX_NAMED]]
    more = f" and {len(columns) - _MAX_NAMED} more" if len(columns) > _MAX_NAMED else ""
    return f"column{'s' if len(columns) > 1 else ''} {', '.join(shown)}{more}"
