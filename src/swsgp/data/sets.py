"""The data sets of the paper, by name."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from swsgp.arrays import as_inputs, as_target
from swsgp.data.sources import SOURCES, fetch
from swsgp.errors import DataError, DataFolderError

_VARIABLE = "SWSGP_DATA"
# Sets that stand for one of the paper's where that cannot be had, and what they are.
STAND_INS = {
    "airline": "2.5 million flights of 2008 to 2023, not the 5.9 million of 2008",
    "wave_standin_sgemm": "run times of GPU kernels for wave energy",
    "query_standin": "range queries over taxi pick-ups for those over crimes",
}
_STANDS_FOR = {"wave": "wave_standin_sgemm", "query": "query_standin"}
# The flights of 2008 are more than those that stand for them, under the same name.
_FLIGHTS_OF_2008 = 5_000_000


@dataclass(frozen=True)
class DataSet:
    """A table of numbers: inputs (N, D) with their column names, and one target for each row."""

    name: str
    columns: tuple[str, ...]
    x: np.ndarray
    y: np.ndarray


def data_folder() -> Path:
    """Where data sets lie: the folder named by SWSGP_DATA, or one in the user's cache."""
    given = os.environ.get(_VARIABLE)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "swsgp"


def set_or_stand_in(name: str) -> str:
    """The name of a data set of the paper, or of the one that stands for it where only that is there."""
    stand_in = _STANDS_FOR.get(name, name)
    has_own = (data_folder() / f"{name}.parquet").is_file()
    return stand_in if (data_folder() / f"{stand_in}.parquet").is_file() and not has_own else name


def what_stands_in(name: str) -> str | None:
    """What the data of this name are, if not the paper's."""
    path = file_of_set(name)
    n_rows = _whole(path, pq.read_metadata).num_rows
    if name in STAND_INS and not (name == "airline" and n_rows >= _FLIGHTS_OF_2008):
        return STAND_INS[name]
    trouble = SOURCES[name].trouble_with(_table(path)) if name in SOURCES else None
    return f"a file with {trouble}" if trouble else None


def file_of_set(name: str) -> Path:
    """`NAME.parquet` in the data folder. Sets of the paper are fetched into the cache, where no folder is named."""
    path = data_folder() / f"{name}.parquet"
    if not path.is_file() and name in SOURCES and not os.environ.get(_VARIABLE):
        path = fetch(name, path.parent)
    if not path.is_file():
        raise DataFolderError(
            f"there is no {path.name} in {path.parent}; set {_VARIABLE}, or --data of `swsgp reproduce`, "
            "to the folder that has it."
        )
    return path


def digest_of_set(name: str) -> str:
    """What tells the file of a data set from others: the beginning of its SHA-256."""
    digest: str = _whole(file_of_set(name), _digest)
    return digest[:16]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_set(name: str) -> DataSet:
    """A data set from its file; the column `target` is what is to be predicted."""
    table = _table(file_of_set(name))
    inputs = table.drop_columns([column for column in ("target", "split") if column in table.column_names])
    columns = tuple(inputs.column_names)
    return DataSet(name, columns, as_inputs(inputs), as_target(table["target"].to_numpy()))


def _table(path: Path) -> pa.Table:
    table = _whole(path, lambda path: pq.read_table(path, page_checksum_verification=True))
    if "target" not in table.column_names:
        raise DataError(f"{path} must have a column 'target', got {', '.join(table.column_names)}.")
    return table


def _whole(path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is not a whole Parquet file: {error}") from None
