"""What one pass over a long table tells: how many rows it has, which values its text has, and a sample of its rows."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from swsgp.data.table_files import BATCH_ROWS, Table, batches
from swsgp.data.tables import Encoding, check_missing, is_complete, is_text, n_missing
from swsgp.errors import DataError, SettingError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
# Bytes of a number of a row that is read: as Arrow has it, as float64, and scaled.
BYTES_READ = 24
# More different values of a target than this are no classes.
_MAX_CLASSES = 1000


def n_bytes_of(size: Any) -> int:
    """A size in bytes, given as a number or as text such as 500MB or 2 GB."""
    found = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?)i?B?\s*", str(size), re.IGNORECASE)
    try:
        n_bytes = int(float(found.group(1)) * _UNITS[found.group(2).upper()]) if found else 0
    except ValueError:
        n_bytes = 0
    if n_bytes < 1_000_000:
        raise SettingError(f"max_memory must be a size such as 500MB or 2GB, 1MB or more, got {size!r}.")
    return n_bytes


def rows_for(n_bytes: float, bytes_per_row: int) -> int:
    """How many rows fit, at least one."""
    return max(1, int(n_bytes / bytes_per_row))


@dataclass(frozen=True)
class Overview:
    """A table's number of rows, all values of its text columns and, if these are few, of its target, and a sample.

    `places` are the row numbers of the sample, which is in random order.
    """

    n_rows: int
    categories: dict[str, pa.ChunkedArray]
    labels: pa.ChunkedArray | None
    sample: pa.Table
    places: np.ndarray


def complete_parts(
    table: Table, columns: Sequence[str], target: str, missing: str, max_memory: int, width: int
) -> Iterator[pa.Table]:
    """The rows of a table to learn from, in parts that take a small share of the memory with so many columns."""
    names = [*columns, target]
    size = min(BATCH_ROWS, rows_for(max_memory / 8, BYTES_READ * width))
    for part in batches(table, names, size):
        kept = part.filter(pa.array(is_complete(part))) if missing == "drop" else part
        if len(kept):
            yield kept


def look(
    table: Table,
    columns: Sequence[str],
    target: str,
    missing: str,
    max_memory: int,
    max_categories: int,
    seed: int,
    least: int = 0,
) -> Overview:
    """Go over a table once; the sample takes a quarter of the memory, but has so many rows at least."""
    check_missing(missing)
    size = max(least, rows_for(max_memory / 4, 2 * BYTES_READ * (len(columns) + 1)))
    rng = np.random.default_rng((seed, 6))
    kept: list[tuple[np.ndarray, np.ndarray, pa.Table]] = []
    n_rows, n_kept, limit = 0, 0, 1.0
    categories: dict[str, list[pa.Array]] = {}
    labels: pa.ChunkedArray | None = None
    many_labels = False
    n_absent = np.zeros(len(columns), dtype=int)
    for part in complete_parts(table, columns, target, missing, max_memory, len(columns) + 1):
        n_absent += [n_missing(part[name]) for name in columns]
        for name in columns:
            if is_text(part.schema.field(name).type):
                found = pc.unique(pa.concat_arrays([*categories.get(name, []), *_plain(part[name]).chunks]))
                if len(found) > max_categories + 1:
                    raise DataError(
                        f"column '{name}' is text with more than max_categories={max_categories} different values; "
                        "leave it out, or raise max_categories."
                    )
                categories[name] = [found]
        if not many_labels:
            chunks = _plain(part[target]).chunks if labels is None else [*labels.chunks, *_plain(part[target]).chunks]
            labels = pa.chunked_array([pc.unique(pa.chunked_array(chunks)).drop_null()])
            many_labels = len(labels) > _MAX_CLASSES
        # Each row draws a number, and those with the smallest are the sample.
        keys, places = rng.random(len(part)), np.arange(n_rows, n_rows + len(part))
        chosen = np.flatnonzero(keys < limit)
        kept.append((keys[chosen], places[chosen], part.take(chosen)))
        n_rows, n_kept = n_rows + len(part), n_kept + len(chosen)
        if n_kept > 1.5 * size:
            kept = [_smallest(kept, size)]
            n_kept, limit = size, float(kept[0][0].max())
    if not n_rows:
        raise DataError(f"{table} has no rows to learn from.")
    if missing == "error":
        Encoding(tuple(columns), (None,) * len(columns), None, True).refuse_missing(n_absent.tolist())
    values = {name: pa.chunked_array(found) for name, found in categories.items()}
    # Text becomes a column for each value.
    width = len(columns) + 1 + sum(map(len, values.values()))
    _, places, sample = _smallest(kept, max(least, rows_for(max_memory / 4, 2 * BYTES_READ * width)))
    return Overview(n_rows, values, None if many_labels else labels, sample.combine_chunks(), places)


def _smallest(
    kept: list[tuple[np.ndarray, np.ndarray, pa.Table]], size: int
) -> tuple[np.ndarray, np.ndarray, pa.Table]:
    keys, places = (np.concatenate([part[i] for part in kept]) for i in range(2))
    order = np.argsort(keys)[:size]
    return keys[order], places[order], pa.concat_tables([part[2] for part in kept]).take(order)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
