"""Where the data sets of the paper come from: fetched once from their public sources, checked, and kept as Parquet."""

import gzip
import http.client
import io
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from scipy.io import arff

from swsgp.errors import DataError, DataFolderError
from swsgp.files import replacing

_UCI = "https://archive.ics.uci.edu/static/public"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_FLIGHTS = "https://dataverse.harvard.edu/api/access/datafile"
# What the file of a data set that was fetched says in its metadata.
ORIGIN = b"fetched from"


@dataclass(frozen=True)
class Source:
    """Addresses of the original files, how they become a table with a column `target`, and how it is known.

    It must have this many rows and inputs, and the means of all inputs together and of the target must be these, where
    they are known; archives may be packed anew, so their bytes tell nothing. The rows of a table that `varies` depend
    on how its files were joined: they may be one in a hundred more or less.
    """

    urls: tuple[str, ...]
    parse: Callable[[list[bytes]], pa.Table]
    n_rows: int
    n_inputs: int
    means: tuple[float, float] | None = None
    varies: bool = False

    def trouble_with(self, table: pa.Table) -> str | None:
        """What tells a table from this data set, if anything does."""
        inputs = [column for column in table.column_names if column not in ("target", "split")]
        of_rows = abs(len(table) - self.n_rows) > self.n_rows // 100 * self.varies
        if of_rows or len(inputs) != self.n_inputs:
            return f"{len(table)} rows and {len(inputs)} inputs, where it should have {self.n_rows} and {self.n_inputs}"
        if self.means is None:
            return None
        for name in (*inputs, "target"):
            kind = table.schema.field(name).type
            if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
                return f"a column {name!r} of {kind}, where it should have numbers"
        found = float(np.mean([_mean(table[column]) for column in inputs])), _mean(table["target"])
        if np.allclose(found, self.means, rtol=1e-4, atol=1e-5):
            return None
        return "means of {:g} and {:g}, where it should have {:g} and {:g}".format(*found, *self.means)


def fetch(name: str, folder: Path, read: Callable[[str], bytes] | None = None) -> Path:
    """Fetch a data set into the folder, as `NAME.parquet`. `read` gets the bytes at an address."""
    if name not in SOURCES:
        raise DataFolderError(f"there is no public source for {name!r}; there are {', '.join(SOURCES)}.")
    source = SOURCES[name]
    read = _read if read is None else read
    try:
        parts = [read(url) for url in source.urls]
    except (OSError, http.client.HTTPException) as error:
        raise DataFolderError(
            f"{name} could not be fetched from {source.urls[0]} ({error}); fetch it by hand, or set SWSGP_DATA to a "
            f"folder that has {name}.parquet."
        ) from None
    try:
        table = source.parse(parts)
    except DataFolderError:
        raise
    # Whatever other bytes lead to is their fault.
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise DataError(f"what came from {source.urls[0]} is not the data set {name} ({what}).") from None
    trouble = source.trouble_with(table)
    if trouble is not None:
        raise DataError(f"what came from {source.urls[0]} is not the data set {name}: it has {trouble}.")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.parquet"
    table = table.replace_schema_metadata({ORIGIN: source.urls[0]})
    with replacing(path) as new:
        pq.write_table(table, new, compression="zstd", write_page_checksum=True)
    return path


def _mean(column: pa.ChunkedArray) -> float:
    return float(column.to_numpy().mean(dtype=np.float64))


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


# ------------------------------------------------------------------------------------------------ kinds of files


def _member(archive: bytes, ending: str) -> bytes:
    """The first file of a zip archive whose name ends so, in any archive within it, too."""
    with zipfile.ZipFile(io.BytesIO(archive)) as whole:
        for name in sorted(whole.namelist()):
            if name.endswith(ending):
                return whole.read(name)
        for name in sorted(whole.namelist()):
            if name.endswith(".zip"):
                return _member(whole.read(name), ending)
    raise ValueError(f"no file in it ends in {ending}")


def _table(values: np.ndarray, target: int, names: list[str] | None = None) -> pa.Table:
    """Columns of numbers, one of which is the target; it comes last."""
    n_columns = values.shape[1]
    names = [f"x{i}" for i in range(n_columns)] if names is None else names
    target %= n_columns
    columns = {name: values[:, i] for i, name in enumerate(names) if i != target}
    return pa.table(columns | {"target": values[:, target]})


def _csv(content: bytes, target: int, has_names: bool = True) -> pa.Table:
    options = pa.csv.ReadOptions(autogenerate_column_names=not has_names)
    table = pa.csv.read_csv(io.BytesIO(content), read_options=options)
    values = np.stack([column.to_numpy().astype(np.float64) for column in table.columns], axis=1)
    return _table(values, target, table.column_names if has_names else None)


def _arff(content: bytes) -> pa.Table:
    rows, _ = arff.loadarff(io.StringIO(content.decode()))
    values = np.array([[float(value) for value in row] for row in rows.tolist()])
    return _table(values, -1)


def _excel(content: bytes, skip: int, target: int, drop: int = 0) -> pa.Table:
    try:
        import pandas as pd  # type: ignore[import-untyped]

        sheet = pd.read_excel(io.BytesIO(content), header=skip)
    except ImportError as error:
        raise DataFolderError(
            f"this data set comes as a spreadsheet ({error}); pip install 'swsgp[data]' to read it."
        ) from None
    return _table(sheet.to_numpy(dtype=np.float64)[:, drop:], target, [str(name) for name in sheet.columns[drop:]])


def _mnist(parts: list[bytes]) -> pa.Table:
    images = [np.frombuffer(gzip.decompress(part), np.uint8, offset=16).reshape(-1, 784) for part in parts[::2]]
    digits = [np.frombuffer(gzip.decompress(part), np.uint8, offset=8) for part in parts[1::2]]
    pixels = np.concatenate(images)
    split = np.repeat(["train", "test"], [len(images[0]), len(images[1])])
    columns = {f"p{i}": pixels[:, i] for i in range(784)}
    return pa.table(columns | {"split": split, "target": np.concatenate(digits).astype(np.int8)})


def _wave(archive: bytes) -> pa.Table:
    """Positions and powers of 16 converters at four coasts; the target is their power together."""
    coasts = ("Adelaide", "Perth", "Sydney", "Tasmania")
    tables = [_csv(_member(archive, f"{coast}_Data.csv"), -1, has_names=False) for coast in coasts]
    return pa.concat_tables(tables)


def _query(archive: bytes) -> pa.Table:
    """Range queries: centre and half-widths against the count."""
    table = pa.csv.read_csv(io.BytesIO(_member(archive, "Range-Queries-Aggregates.csv")))
    columns = [column for column in table.column_names if column.strip()]
    values = np.stack([table[column].to_numpy().astype(np.float64) for column in columns[-7:-2]], axis=1)
    return _table(values, -1, columns[-7:-2])


def _airline(parts: list[bytes]) -> pa.Table:
    """Flights of 2008 that landed where they should, in aircraft of known age; the target is whether they were late."""
    missing = pa.csv.ConvertOptions(null_values=["NA", "None", ""], strings_can_be_null=True)
    aircraft = pa.csv.read_csv(io.BytesIO(parts[1]), convert_options=missing)
    built = dict(zip(aircraft["tailnum"].to_pylist(), aircraft["year"].to_pylist(), strict=True))
    numbers = ("Month", "DayofMonth", "DayOfWeek", "AirTime", "Distance", "ArrTime", "DepTime", "ArrDelay")
    missing.include_columns = [*numbers, "TailNum", "Cancelled", "Diverted"]
    with pa.CompressedInputStream(pa.BufferReader(parts[0]), "bz2") as stream:
        flights = pa.csv.read_csv(stream, convert_options=missing)
    tails = flights["TailNum"].combine_chunks().dictionary_encode()
    years = np.array([float(built.get(tail) or np.nan) for tail in tails.dictionary.to_pylist()] + [np.nan])
    year = years[tails.indices.fill_null(-1).to_numpy()]
    month, day, weekday, air_time, distance, arrival, departure, delay = (
        flights[name].to_numpy().astype(np.float64) for name in numbers
    )
    columns = {
        "month": month,
        "day_of_month": day,
        "day_of_week": weekday,
        "plane_age": 2008.0 - np.where(year > 0, year, np.nan),
        "air_time": air_time,
        "distance": distance,
        # In minutes after midnight, where the files have 1830 for half past six.
        "arr_time": 60.0 * (arrival // 100) + arrival % 100,
        "dep_time": 60.0 * (departure // 100) + departure % 100,
        "target": np.where(np.isnan(delay), np.nan, delay > 0),
    }
    landed = (flights["Cancelled"].to_numpy() == 0) & (flights["Diverted"].to_numpy() == 0)
    known = landed & np.isfinite(list(columns.values())).all(axis=0)
    return pa.table({name: values[known] for name, values in columns.items()})


SOURCES: dict[str, Source] = {
    "powerplant": Source(
        (f"{_UCI}/294/combined+cycle+power+plant.zip",),
        lambda parts: _excel(_member(parts[0], "Folds5x2_pp.xlsx"), 0, -1),
        *(9_568, 4, (290.131273, 454.365009)),
    ),
    "kin8nm": Source(
        ("https://www.openml.org/data/download/3626/dataset_2175_kin8nm.arff",),
        lambda parts: _arff(parts[0]),
        *(8_192, 8, (0.002473, 0.714283)),
    ),
    "protein": Source(
        (f"{_UCI}/265/physicochemical+properties+of+protein+tertiary+structure.zip",),
        lambda parts: _csv(_member(parts[0], "CASP.csv"), 0),
        *(45_730, 9, (153947.963182, 7.748528)),
    ),
    "eeg": Source(
        (f"{_UCI}/264/eeg+eye+state.zip",),
        lambda parts: _arff(_member(parts[0], "EEG Eye State.arff")),
        *(14_980, 14, (4316.882029, 0.448798)),
    ),
    "credit": Source(
        (f"{_UCI}/350/default+of+credit+card+clients.zip",),
        lambda parts: _excel(_member(parts[0], ".xls"), 1, -1, drop=1),
        *(30_000, 23, (20392.903741, 0.2212)),
    ),
    "spam": Source(
        (f"{_UCI}/94/spambase.zip",),
        lambda parts: _csv(_member(parts[0], "spambase.data"), -1, has_names=False),
        *(4_601, 57, (6.15077, 0.394045)),
    ),
    "wave": Source((f"{_UCI}/494/wave+energy+converters.zip",), lambda parts: _wave(parts[0]), 288_000, 48),
    "query": Source((f"{_UCI}/493/query+analytics+workloads+dataset.zip",), lambda parts: _query(parts[0]), 200_000, 4),
    "mnist": Source(
        tuple(
            f"{_MNIST}/{part}-idx{n}-ubyte.gz"
            for part, n in (("train-images", 3), ("train-labels", 1), ("t10k-images", 3), ("t10k-labels", 1))
        ),
        _mnist,
        *(70_000, 784, (33.385965, 4.452429)),
    ),
    "airline": Source(
        (f"{_FLIGHTS}/1374917", f"{_FLIGHTS}/:persistentId?persistentId=doi:10.7910/DVN/HG7NV7/XXSL8A"),
        _airline,
        *(5_929_413, 8),
        varies=True,
    ),
}
