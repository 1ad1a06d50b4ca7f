"""From what a user has to arrays that can be computed with, or an error that names what is wrong."""

from typing import Any

import numpy as np

from swsgp.errors import DataError

_MAX_NAMED = 5


def as_inputs(x: Any, what: str = "inputs") -> np.ndarray:
    """Inputs as a float64 array (N, D) with every value finite."""
    names = [str(name) for name in getattr(x, "columns", [])]
    array = _as_numbers(x, names, what)
    if array.ndim != 2:
        advice = "; use x[:, None] for a single column." if array.ndim == 1 else "."
        raise DataError(f"{what} must have two axes, rows and columns, got an array of shape {array.shape}{advice}")
    if 0 in array.shape:
        raise DataError(f"{what} must have at least one row and one column, got shape {array.shape}.")
    _check_finite(array, names, what)
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
    _check_finite(array[:, None], [what], what)
    return array


def check_pair(x: Any, y: Any, n_columns: int, precision: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs with the expected number of columns and their observations, in the precision of a model."""
    x, y = as_inputs(x), as_target(y)
    if x.shape[1] != n_columns:
        raise DataError(f"inputs must have {n_columns} columns, as the model's inducing inputs have, got {x.shape[1]}.")
    if len(x) != len(y):
        raise DataError(f"inputs and target must have as many rows, got {len(x)} and {len(y)}.")
    with np.errstate(over="ignore"):
        narrow = x.astype(precision), y.astype(precision)
    if not all(np.isfinite(array).all() for array in narrow):
        raise DataError(f"a value is too large for {precision}; scale the data or use precision='float64'.")
    return narrow


def _as_numbers(values: Any, names: list[str], what: str) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind in "buif":
        return array.astype(np.float64)
    if array.dtype.kind == "O":
        try:
            return array.astype(np.float64)
        except (TypeError, ValueError):
            pass
    raise DataError(f"{what} must be numbers, got {_not_numeric(array, names)}; encode or drop them.")


def _not_numeric(array: np.ndarray, names: list[str]) -> str:
    """The columns that are not numbers, or the type if there is no telling."""
    if array.ndim != 2 or array.dtype.kind != "O":
        return f"values of type {array.dtype}"
    bad = []
    for j in range(array.shape[1]):
        try:
            array[:, j].astype(np.float64)
        except (TypeError, ValueError):
            bad.append(j)
    return f"text or other objects in {_name_columns(bad, names)}"


def _check_finite(array: np.ndarray, names: list[str], what: str) -> None:
    n_bad = (~np.isfinite(array)).sum(axis=0)
    if n_bad.any():
        bad = np.flatnonzero(n_bad)
        raise DataError(
            f"{what} must be finite, got {n_bad.sum()} NaN or infinite values in {_name_columns(bad, names)}; "
            "drop or fill those rows."
        )


def _name_columns(columns: Any, names: list[str]) -> str:
    shown = [names[j] if names else str(j) for j in columns[:_MAX_NAMED]]
    more = f" and {len(columns) - _MAX_NAMED} more" if len(columns) > _MAX_NAMED else ""
    return f"column{'s' if len(columns) > 1 else ''} {', '.join(shown)}{more}"
