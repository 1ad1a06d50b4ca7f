"""Tables in memory and what becomes of their columns: numbers stay, text becomes one column for each value.

A table is anything with named columns (pandas, polars, Arrow) or an array of numbers.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from swsgp.arrays import name_columns
from swsgp.errors import DataError, DataWarning, SettingError

MISSING = ("error", "drop", "fill")


def as_arrow(table: Any) -> pa.Table | None:
    """A table with named columns as an Arrow table; None for anything else, and for names that are not text."""
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    if isinstance(table, pa.Table):
        return table
    if hasattr(table, "collect"):
        raise DataError(f"a {type(table).__name__} has no rows yet; collect() it first.")
    names = list(getattr(table, "columns", []))
    if not names or not all(isinstance(name, str) for name in names):
        return None
    _check_names(names)
    try:
        if hasattr(table, "to_arrow"):
            return table.to_arrow()
        return pa.Table.from_pandas(table, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(f"a column has values of different types: {error}") from None


def as_vector(values: Any) -> Any:
    """A column of a table as a NumPy array, text and missing values included; anything else as it is."""
    if isinstance(values, pa.Table) and values.num_columns == 1:
        values = values.column(0)
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        values = _decoded(values)
        if values.null_count and not pa.types.is_floating(values.type):
            # Arrow would make numbers with fractions of whole ones, and dates of nothing.
            return np.array(values.to_pylist(), dtype=object)
        return values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy()
    return values.to_numpy() if hasattr(values, "to_numpy") else values


def name_of(column: Any) -> str | None:
    """The name of a column of a table, if it has one."""
    name = column.column_names[0] if isinstance(column, pa.Table) else getattr(column, "name", None)
    return name if isinstance(name, str) else None


@dataclass(frozen=True)
class Encoding:
    """How the columns of a table become columns of numbers.

    `categories` has the different values of each text column, and None for numbers; `fill` what stands for a
    missing value of each column of numbers, or None if missing values are refused. The columns of an array have
    no names of their own: they are x0, x1, … here, and `is_named` is false.
    """

    names: tuple[str, ...]
    categories: tuple[tuple[str, ...] | None, ...]
    fill: tuple[float, ...] | None
    is_named: bool

    @classmethod
    def of(
        cls, table: pa.Table, max_categories: Any, missing: Any, known: dict[str, pa.ChunkedArray] | None = None
    ) -> "Encoding":
        """Learn it from the training table; `known` has all values of text columns of which the table has some."""
        check_missing(missing)
        if not isinstance(max_categories, int | np.integer) or max_categories < 1:
            raise SettingError(f"max_categories must be a whole number, 1 or more, got {max_categories!r}.")
        _check_names(table.column_names)
        columns = {name: table[name] for name in table.column_names}
        values = columns | (known or {})
        categories = tuple(_categories(name, values[name], int(max_categories)) for name in columns)
        fill = None
        if missing == "fill":
            fill = tuple(
                np.nan
                if known is not None
                else _median(name, _decoded(column).cast(pa.float64(), safe=False).to_numpy())
                for (name, column), known in zip(columns.items(), categories, strict=True)
            )
        return cls(tuple(columns), categories, fill, True)

    @classmethod
    def of_array(cls, x: np.ndarray, missing: Any) -> "Encoding":
        """For an array of numbers (N, D)."""
        names = tuple(f"x{j}" for j in range(x.shape[1]))
        fill = tuple(_median(name, x[:, j]) for j, name in enumerate(names)) if missing == "fill" else None
        return cls(names, (None,) * len(names), fill, False)

    @property
    def sources(self) -> np.ndarray:
        """The position of the table's column that each column of numbers comes from."""
        return np.repeat(np.arange(len(self.names)), [1 if known is None else len(known) for known in self.categories])

    @property
    def is_text(self) -> np.ndarray:
        """Which columns of numbers stand for a value of a text column."""
        return np.array([self.categories[source] is not None for source in self.sources], dtype=bool)

    def apply(self, table: pa.Table) -> np.ndarray:
        """The columns of numbers (N, D) of a table, whose own columns may come in any order."""
        self._check_columns(table.column_names)
        columns = [table[name] for name in self.names]
        self.refuse_missing([n_missing(column) for column in columns])
        parts = [
            _numbers(name, column) if known is None else _one_hot(name, column, known)
            for name, column, known in zip(self.names, columns, self.categories, strict=True)
        ]
        return self._filled(np.concatenate(parts, axis=1))

    def apply_array(self, x: np.ndarray) -> np.ndarray:
        """As `apply`, for an array whose columns are in the order of training."""
        if any(known is not None for known in self.categories):
            raise DataError("the model was trained with text columns; give a table with their names.")
        if self.fill is None and np.isfinite(x).all():
            return x
        self.refuse_missing(np.isnan(x).sum(axis=0).tolist())
        return self._filled(x)

    def _filled(self, x: np.ndarray) -> np.ndarray:
        """With a value for each one that is missing, and no infinite ones."""
        if self.fill is not None:
            x = np.where(np.isnan(x), np.array(self.fill)[self.sources], x)
        n_infinite = np.isinf(x).sum(axis=0)
        if n_infinite.any():
            bad = [f"'{self.names[self.sources[j]]}' ({n_infinite[j]})" for j in np.flatnonzero(n_infinite)]
            raise DataError(f"values are infinite in {_listed(bad)}; drop or mend those rows.")
        return x

    def _check_columns(self, names: Sequence[str]) -> None:
        _check_names(names)
        absent = [name for name in self.names if name not in names]
        if absent:
            raise DataError(f"the table lacks {_quoted(absent)}, which the model was trained with.")
        extra = [name for name in names if name not in self.names]
        if extra:
            raise DataError(f"the table has {_quoted(extra)}, which the model was not trained with; leave it out.")

    def refuse_missing(self, counts: list[int]) -> None:
        """Refuse columns in which so many values are missing, unless something stands for them."""
        if self.fill is not None:
            return
        bad = [f"'{name}' ({count})" for name, count in zip(self.names, counts, strict=True) if count]
        if bad:
            raise DataError(
                f"values are missing (NaN) in {_listed(bad)}; drop those rows or columns, or train with missing='fill' "
                "(medians stand in; a missing text is none of the known values) or missing='drop' (for training alone)."
            )


def numbers(table: pa.Table) -> np.ndarray:
    """The columns of a table, all of them numbers, as an array; missing values are NaN."""
    return np.concatenate([_numbers(name, table[name]) for name in table.column_names], axis=1)


def n_missing(column: pa.ChunkedArray) -> int:
    """How many values are missing: null, or NaN in a column of floats."""
    column = _decoded(column)
    count = column.null_count
    if pa.types.is_floating(column.type):
        count += pc.sum(pc.is_nan(column)).as_py() or 0
    return int(count)


def is_complete(rows: pa.Table | np.ndarray) -> np.ndarray:
    """Which rows have every value."""
    if isinstance(rows, np.ndarray):
        return np.asarray(~np.isnan(rows).any(axis=1))
    keep = np.ones(len(rows), dtype=bool)
    for column in map(_decoded, rows.columns):
        keep &= pc.is_valid(column).to_numpy()
        if pa.types.is_floating(column.type):
            keep &= ~np.isnan(column.to_numpy())
    return keep


def is_missing(values: np.ndarray) -> np.ndarray:
    """Which values of a column are missing: None, NaN, or what pandas puts in their place."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind in "mM":
        return np.isnat(values)
    if values.dtype.kind != "O":
        return np.zeros(len(values), dtype=bool)
    return np.array(
        [value is None or type(value).__name__ == "NAType" or value != value for value in values], dtype=bool
    )


def check_missing(missing: Any) -> None:
    if missing not in MISSING:
        raise SettingError(f"missing must be one of {', '.join(MISSING)}, got {missing!r}.")


def _check_names(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if list(names).count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise DataError(f"the table has more than one column named '{twice[0]}'; rename or leave one out.")


def _quoted(names: Sequence[str]) -> str:
    return _listed([f"'{name}'" for name in names])


def _listed(columns: list[str]) -> str:
    return name_columns(range(len(columns)), columns)


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are text, as such or as categories."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
    )


def _categories(name: str, column: pa.ChunkedArray, max_categories: int) -> tuple[str, ...] | None:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if _is_number(kind):
        return None
    if pa.types.is_null(kind):
        raise DataError(f"column '{name}' has no values; leave it out.")
    if pa.types.is_binary(kind):
        raise DataError(f"column '{name}' is not text in UTF-8; save the table as UTF-8, or leave the column out.")
    if not is_text(kind):
        raise DataError(f"column '{name}' has values of type {kind}; turn them into numbers or text, or leave it out.")
    known = tuple(sorted(value for value in _decoded(column).unique().to_pylist() if value is not None))
    if len(known) > max_categories:
        raise DataError(
            f"column '{name}' is text with {len(known)} different values, more than max_categories={max_categories}; "
            "leave it out, or raise max_categories."
        )
    if not known:
        raise DataError(f"column '{name}' has no values; leave it out.")
    return known


def _decoded(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _numbers(name: str, column: pa.ChunkedArray) -> np.ndarray:
    column = _decoded(column)
    if pa.types.is_null(column.type):
        return np.full((len(column), 1), np.nan)
    if not _is_number(column.type):
        found = "text" if is_text(column.type) else f"of type {column.type}"
        raise DataError(f"column '{name}' must be numbers, as in training, and is {found}.")
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy())[:, None]


def _one_hot(name: str, column: pa.ChunkedArray, known: tuple[str, ...]) -> np.ndarray:
    column = _decoded(column)
    if pa.types.is_null(column.type):
        return np.zeros((len(column), len(known)))
    if not is_text(column.type):
        raise DataError(f"column '{name}' must be text, as in training, and is of type {column.type}.")
    position = pc.index_in(column, value_set=pa.array(known, column.type)).fill_null(-1).to_numpy()
    is_new = (position < 0) & pc.is_valid(column).to_numpy()
    if is_new.any():
        new = pc.unique(column.filter(pa.array(is_new))).to_pylist()
        warnings.warn(
            f"column '{name}' has {is_new.sum()} values that were not there in training "
            f"({_quoted(new).split(' ', 1)[1]}); they count as none of the known ones.",
            DataWarning,
            stacklevel=2,
        )
    return np.asarray(position[:, None] == np.arange(len(known)), dtype=np.float64)


def _median(name: str, values: np.ndarray) -> float:
    if np.isnan(values).all():
        raise DataError(f"column '{name}' has no values; leave it out.")
    return float(np.nanmedian(values))
