"""Tables in files: CSV, Parquet and Arrow (Feather), one or a folder of them, whole or in batches."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.fs
import pyarrow.parquet as pq

from swsgp.errors import DataError, SettingError
from swsgp.files import replacing

CSV, PARQUET, ARROW = (".csv",), (".parquet", ".pq"), (".arrow", ".feather", ".ipc")
_ENDS = (*CSV, *PARQUET, *ARROW)


class _File(NamedTuple):
    """One file of a table, here or in an object store."""

    system: pa.fs.FileSystem
    path: str

    def __str__(self) -> str:
        return self.path

    def opened(self) -> Any:
        # Not mapped into memory: a program that reads from a map of a file which then shrinks is killed.
        return self.system.open_input_file(self.path)


class _Listed(NamedTuple):
    """The files of a table, as they were once."""

    name: str
    files: list[_File]

    def __str__(self) -> str:
        return self.name


# A file, a folder of files of one kind, or the address of either in an object store (s3://bucket/folder).
Table = Path | str | _Listed
# Rows that are held at once by a pass over a file.
BATCH_ROWS = 65_536
# What to try next for a column of a CSV file whose values turn out not to be of the type that its start suggested.
_WIDER = {"int64": pa.float64(), "double": pa.string()}


def column_names(table: Table) -> list[str]:
    """The names of a table's columns."""
    file = _files(table)[0]
    with _errors_of(file):
        if _kind(file.path) == CSV:
            with _csv_reader(file, None) as reader:
                return list(reader.schema.names)
        if _kind(file.path) == PARQUET:
            with file.opened() as source:
                return list(pq.read_schema(source).names)
        with file.opened() as source:
            return list(pa.ipc.open_file(source).schema.names)


def input_names(table: Table, target: str, include: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """The columns of a table to learn from: those included, or all, but for the target and those excluded."""
    names = column_names(table)
    for name in [target, *include, *exclude]:
        if name not in names:
            raise DataError(f"{table} has no column '{name}'; it has {', '.join(names)}.")
    if target in include:
        raise SettingError(f"the target '{target}' cannot be an input, too; take it out of --include.")
    left_out = {target, *exclude}
    chosen = [name for name in (include or names) if name not in left_out]
    if not chosen:
        raise DataError("no input columns are left.")
    return chosen


def read_table(table: Table, columns: Sequence[str]) -> pa.Table:
    """Some columns of a table, all rows."""
    return pa.concat_tables([_read(file, list(columns)) for file in _files(table)], promote_options="permissive")


def _read(file: _File, columns: list[str]) -> pa.Table:
    with _errors_of(file):
        if _kind(file.path) == CSV:
            return _read_csv(file, columns)
        with file.opened() as source:
            if _kind(file.path) == PARQUET:
                return pq.read_table(source, columns=columns, page_checksum_verification=True)
            return _validated(_arrow_reader(source, columns).read_all().select(columns))


def batches(table: Table, names: Sequence[str], n_rows: int = BATCH_ROWS) -> Iterator[pa.Table]:
    """Some columns of a table, a bounded number of rows at a time; those of a CSV file are text, see `typed`."""
    names = list(names)
    files = _files(table)
    schema = _common_schema(files, names)
    for file in files:
        with _errors_of(file):
            if _kind(file.path) == CSV:
                with _csv_reader(file, dict.fromkeys(names, pa.string()), names) as reader:
                    for batch in reader:
                        yield pa.Table.from_batches([batch])
            elif _kind(file.path) == PARQUET:
                with file.opened() as source:
                    # Without buffers for row groups to come, which may be the whole file.
                    found = pq.ParquetFile(source, pre_buffer=False, page_checksum_verification=True)
                    for batch in found.iter_batches(n_rows, columns=names, use_threads=False):
                        yield _as(schema, pa.Table.from_batches([batch]).select(names))
            else:
                with file.opened() as source:
                    arrow = _arrow_reader(source, names)
                    for i in range(arrow.num_record_batches):
                        whole = _validated(pa.Table.from_batches([arrow.get_batch(i)]).select(names))
                        whole = _as(schema, whole)
                        for start in range(0, len(whole), n_rows):
                            yield whole.slice(start, n_rows)


def _arrow_reader(source: Any, names: list[str]) -> pa.ipc.RecordBatchFileReader:
    """Reads these columns only."""
    places = pa.ipc.open_file(source).schema
    options = pa.ipc.IpcReadOptions(included_fields=[places.get_field_index(name) for name in names])
    return pa.ipc.open_file(source, options=options)


def _validated(table: pa.Table) -> pa.Table:
    """An Arrow file has no checksums: places of text that lie elsewhere would crash the program."""
    table.validate(full=True)
    return table


def _common_schema(files: list[_File], names: list[str]) -> pa.Schema | None:
    """The types that the columns of several files have in common; None for one file, and for text."""
    if len(files) == 1 or _kind(files[0].path) == CSV:
        return None
    schemas = []
    for file in files:
        with _errors_of(file), file.opened() as source:
            own = pq.read_schema(source) if _kind(file.path) == PARQUET else pa.ipc.open_file(source).schema
            schemas.append(pa.schema([own.field(name) for name in names]))
    if all(schema.equals(schemas[0]) for schema in schemas):
        return None
    try:
        plain = [pa.schema([(field.name, _undictionaried(field.type)) for field in schema]) for schema in schemas]
        return pa.unify_schemas(plain, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"the files of the table have columns of different types: {error}") from None


def _undictionaried(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _as(schema: pa.Schema | None, part: pa.Table) -> pa.Table:
    return part if schema is None else part.cast(schema)


def typed(part: pa.Table, types: dict[str, pa.DataType]) -> pa.Table:
    """Some columns of a part of a file, with these types where they came as text, or are to be text."""
    return pa.table({name: _cast(name, part[name], kind) for name, kind in types.items()})


def write_batches(path: Path, tables: Iterator[pa.Table]) -> int:
    """Put tables of one schema in a file, one after the other, whole or not at all; says how many rows there were."""
    kind = _kind(str(path))
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
    _kind(str(path))


def is_in_parts(table: Table) -> bool:
    """Whether a table can be read a part at a time with its types known: a CSV file has them at its end only."""
    return all(_kind(file.path) != CSV for file in _files(table))


def listed(table: Table) -> _Listed:
    """The table with its files as they are now."""
    return _Listed(str(table), _files(table))


def _files(table: Table) -> list[_File]:
    """The files of a table, in the order of their names."""
    if isinstance(table, _Listed):
        return table.files
    system, path = pa.fs.LocalFileSystem(), str(table)
    try:
        if "://" in path:
            system, path = pa.fs.FileSystem.from_uri(path)
        found = system.get_file_info(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{table} cannot be reached: {str(error).splitlines()[0]}") from None
    if found.type != pa.fs.FileType.Directory:
        _kind(path)
    if found.type == pa.fs.FileType.NotFound:
        raise DataError(f"there is no {table}.")
    if found.type != pa.fs.FileType.Directory:
        return [_File(system, path)]
    inside = system.get_file_info(pa.fs.FileSelector(path, recursive=True))
    names = sorted(
        info.path
        for info in inside
        if info.extension.lower() in {end[1:] for end in _ENDS}
        # Hidden files and those of a program that is still writing.
        and not any(step.startswith((".", "_")) for step in info.path[len(path) :].split("/"))
    )
    kinds = {_kind(name) for name in names}
    if len(kinds) != 1:
        what = "files of several kinds" if kinds else f"no file that ends in one of {', '.join(_ENDS)}"
        raise DataError(f"the folder {table} has {what}; one table has files of one kind.")
    return [_File(system, name) for name in names]


def _kind(path: str) -> tuple[str, ...]:
    for kind in (CSV, PARQUET, ARROW):
        if path.lower().endswith(kind):
            return kind
    raise DataError(f"{path} must end in one of {', '.join(_ENDS)}, which says what format it has.")


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
def _errors_of(path: _File) -> Iterator[None]:
    """What Arrow finds wrong, as an error that names the file."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError, KeyError, OSError) as error:
        if isinstance(error, DataError):
            raise
        what = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise DataError(f"{path} cannot be read: {what.splitlines()[0]}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} cannot be read: it is not text in UTF-8; save it as UTF-8.") from None


@contextmanager
def _csv_reader(
    file: _File, types: dict[str, pa.DataType] | None, names: list[str] | None = None
) -> Iterator[pa.csv.CSVStreamingReader]:
    convert = pa.csv.ConvertOptions(column_types=types, include_columns=names, strings_can_be_null=True)
    with file.opened() as source, pa.csv.open_csv(source, convert_options=convert) as reader:
        yield reader


def _read_csv(file: _File, columns: Sequence[str]) -> pa.Table:
    """A CSV file whose types are those that all values have, not only the first ones."""
    types: dict[str, pa.DataType] = {}
    while True:
        convert = pa.csv.ConvertOptions(column_types=types, include_columns=list(columns), strings_can_be_null=True)
        try:
            with file.opened() as source:
                return pa.csv.read_csv(source, convert_options=convert)
        except pa.ArrowInvalid as error:
            found = re.search(r"In CSV column #(\d+).*CSV conversion error to (\w+)", str(error), re.DOTALL)
            if found is None:
                raise
            with _csv_reader(file, None) as reader:
                name = reader.schema.names[int(found.group(1))]
            wider = _WIDER.get(found.group(2), pa.string())
            if types.get(name) == wider:
                raise
            types[name] = wider
