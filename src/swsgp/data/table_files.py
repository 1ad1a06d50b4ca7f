"""Tables on disk: CSV, Parquet and Arrow (Feather) files, whole or in batches."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from swsgp.errors import DataError
from swsgp.files import replacing

CSV, PARQUET, ARROW = (".csv",), (".parquet", ".pq"), (".arrow", ".feather", ".ipc")
# Rows that are held at once by a pass over a file.
BATCH_ROWS = 65_536
# What to try next for a column of a CSV file whose values turn out not to be of the type that its start suggested.
_WIDER = {"int64": pa.float64(), "double": pa.string()}


def column_names(path: Path) -> list[str]:
    """The names of a file's columns."""
    with _errors_of(path):
        if _kind(path) == CSV:
            with _csv_reader(path, None) as reader:
                return list(reader.schema.names)
        if _kind(path) == PARQUET:
            return list(pq.read_schema(path).names)
        with pa.memory_map(str(path)) as source:
            return list(pa.ipc.open_file(source).schema.names)


def read_table(path: Path, columns: Sequence[str]) -> pa.Table:
    """Some columns of a file."""
    with _errors_of(path):
        if _kind(path) == CSV:
            return _read_csv(path, columns)
        if _kind(path) == PARQUET:
            return pq.read_table(path, columns=list(columns))
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).read_all().select(list(columns))


def batches(path: Path, names: Sequence[str]) -> Iterator[pa.Table]:
    """Some columns of a file, a bounded number of rows at a time; those of a CSV file are text, see `typed`."""
    names = list(names)
    with _errors_of(path):
        if _kind(path) == CSV:
            with _csv_reader(path, dict.fromkeys(names, pa.string()), names) as reader:
                for batch in reader:
                    yield pa.Table.from_batches([batch])
        elif _kind(path) == PARQUET:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=names):
                    yield pa.Table.from_batches([batch]).select(names)
        else:
            with pa.memory_map(str(path)) as source:
                file = pa.ipc.open_file(source)
                for i in range(file.num_record_batches):
                    whole = pa.Table.from_batches([file.get_batch(i)]).select(names)
                    for start in range(0, len(whole), BATCH_ROWS):
                        yield whole.slice(start, BATCH_ROWS)


def typed(part: pa.Table, types: dict[str, pa.DataType]) -> pa.Table:
    """Some columns of a part of a file, with these types where they came as text, or are to be text."""
    return pa.table({name: _cast(name, part[name], kind) for name, kind in types.items()})


def write_batches(path: Path, tables: Iterator[pa.Table]) -> int:
    """Put tables of one schema in a file, one after the other, whole or not at all; says how many rows there were."""
    kind = _kind(path)
    n_rows = 0
    with replacing(path) as new:
        writer: Any = None
        try:
            for table in tables:
                if writer is None:
                    writer = _writer(kind, new, table.schema)
                writer.write_table(table)
                n_rows += len(table)
        finally:
            if writer is not None:
                writer.close()
        if writer is None:
            raise DataError("there are no rows to predict.")
    return n_rows


def check_format(path: Path) -> None:
    """Refuse a name whose end says nothing about the format."""
    _kind(path)


def _kind(path: Path) -> tuple[str, ...]:
    for kind in (CSV, PARQUET, ARROW):
        if path.suffix.lower() in kind:
            return kind
    raise DataError(f"{path} must end in one of {', '.join((*CSV, *PARQUET, *ARROW))}, which says what format it has.")


def _writer(kind: tuple[str, ...], path: Path, schema: pa.Schema) -> Any:
    if kind == CSV:
        return pa.csv.CSVWriter(path, schema)
    if kind == PARQUET:
        return pq.ParquetWriter(path, schema)
    return pa.ipc.new_file(str(path), schema)


def _cast(name: str, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type) == pa.types.is_string(kind):
        return column
    if pa.types.is_string(kind):
        return column.cast(kind)
    text = pc.utf8_trim_whitespace(column)
    lower = pc.utf8_lower(text)
    text = pc.if_else(pc.equal(lower, "true"), "1", pc.if_else(pc.equal(lower, "false"), "0", text))
    try:
        return text.cast(pa.float64()).cast(kind)
    except pa.ArrowInvalid as error:
        value = re.search(r"'(.*?)'", str(error))
        found = f" such as '{value.group(1)}'" if value else ""
        raise DataError(f"column '{name}' must be numbers, as in training, and has text{found}.") from None


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """What Arrow finds wrong, as an error that names the file."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} cannot be read: it is not text in UTF-8; save it as UTF-8.") from None


@contextmanager
def _csv_reader(
    path: Path, types: dict[str, pa.DataType] | None, names: list[str] | None = None
) -> Iterator[pa.csv.CSVStreamingReader]:
    convert = pa.csv.ConvertOptions(column_types=types, include_columns=names, strings_can_be_null=True)
    with pa.csv.open_csv(path, convert_options=convert) as reader:
        yield reader


def _read_csv(path: Path, columns: Sequence[str]) -> pa.Table:
    """A CSV file whose types are those that all values have, not only the first ones."""
    types: dict[str, pa.DataType] = {}
    while True:
        convert = pa.csv.ConvertOptions(column_types=types, include_columns=list(columns), strings_can_be_null=True)
        try:
            return pa.csv.read_csv(path, convert_options=convert)
        except pa.ArrowInvalid as error:
            found = re.search(r"In CSV column #(\d+).*CSV conversion error to (\w+)", str(error), re.DOTALL)
            if found is None:
                raise
            name = column_names(path)[int(found.group(1))]
            wider = _WIDER.get(found.group(2), pa.string())
            if types.get(name) == wider:
                raise
            types[name] = wider
