"""A model and a file: which columns it takes, what they are, and the file's rows in parts, so that it may be long."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from swsgp.data.overview import BYTES_READ, n_bytes_of, rows_for
from swsgp.data.table_files import BATCH_ROWS, Table, batches, column_names, typed
from swsgp.data.tables import is_text
from swsgp.errors import DataError, SettingError
from swsgp.estimators.base import SWSGPBase

# Two values or true and false are classes; more say nothing more.
_FEW_VALUES = 10


def is_classification(task: str, observed: pa.ChunkedArray) -> bool:
    """Whether a target is classes, if the user does not say."""
    if task not in ("auto", "regression", "classification"):
        raise SettingError(f"task must be auto, regression or classification, got '{task}'.")
    if pa.types.is_null(observed.type) or len(observed) == 0:
        raise DataError("the target has no values.")
    if task != "auto":
        return task == "classification"
    if is_text(observed.type) or pa.types.is_boolean(observed.type):
        return True
    return not pa.types.is_temporal(observed.type) and pc.count_distinct(observed).as_py() == 2


def values_of(table: Table, column: str) -> pa.ChunkedArray:
    """The different values of a column, up to the first few, in a pass over the table."""
    found: pa.ChunkedArray | None = None
    for part in batches(table, [column]):
        chunks = part[column].chunks if found is None else [*found.chunks, *part[column].chunks]
        found = pa.chunked_array([pc.unique(pa.chunked_array(chunks))])
        if len(found) > _FEW_VALUES:
            break
    return pa.chunked_array([], pa.null()) if found is None else found


def predictions(
    path: Table, model: SWSGPBase, kept: Sequence[str], coverage: float, max_memory: str
) -> Iterator[pa.Table]:
    """Predictions of a file's rows, in order, in parts, with some of its columns beside them."""
    types = _types(path, model)
    results = _result_names(model)
    names = column_names(path)
    for name in kept:
        if name not in names:
            raise DataError(f"{path} has no column '{name}' to keep; it has {', '.join(names)}.")
        if name in results:
            raise DataError(f"the column '{name}' cannot be kept: a prediction has that name.")
    for part in batches(path, list(dict.fromkeys([*types, *kept])), _rows_at_once(model, kept, max_memory)):
        inputs = typed(part, types)
        if model.fitted_.labels is None:
            mean, variance, lower, upper = model.fitted_.moments_and_interval(model._inputs(inputs), coverage)
            columns = [mean, np.sqrt(variance), lower, upper]
        else:
            probabilities = model.predict_proba(inputs)
            columns = [model.classes_[probabilities.argmax(axis=1)], *probabilities.T]
        yield pa.table({name: part[name] for name in kept} | dict(zip(results, map(pa.array, columns), strict=True)))


def labelled(
    path: Table, model: SWSGPBase, target: str | None, max_memory: str = "500MB"
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Inputs and target of a file, in parts."""
    name = target or model.fitted_.record.get("target")
    if name is None or name not in column_names(path):
        raise DataError(f"{path} has no column '{name}' to compare with; name the target with --target.")
    types = _types(path, model)
    for part in batches(path, list(dict.fromkeys([*types, name])), _rows_at_once(model, [name], max_memory)):
        yield typed(part, types), typed(part, {name: _target_type(model.fitted_.labels)})


def _rows_at_once(model: SWSGPBase, others: Sequence[str], max_memory: str) -> int:
    """Rows whose columns, numbers and predictions take half of the memory; the rest is for the work on them."""
    n_columns = len(model.fitted_.encoding.sources) + len(others)
    n_results = 10 if model.fitted_.labels is None else 4 * len(model.fitted_.labels)
    return min(BATCH_ROWS, rows_for(n_bytes_of(max_memory) / 2, BYTES_READ * (n_columns + n_results)))


def _types(path: Table, model: SWSGPBase) -> dict[str, pa.DataType]:
    """The model's columns in a file, with the types that they had in training."""
    encoding = model.fitted_.encoding
    names = column_names(path)
    absent = [f"'{name}'" for name in encoding.names if name not in names]
    if absent:
        raise DataError(f"{path} lacks {', '.join(absent)}, which the model was trained with.")
    return {
        name: pa.float64() if known is None else pa.string()
        for name, known in zip(encoding.names, encoding.categories, strict=True)
    }


def _target_type(labels: np.ndarray | None) -> pa.DataType:
    if labels is None or labels.dtype.kind == "f":
        return pa.float64()
    return {"b": pa.bool_(), "i": pa.int64(), "u": pa.int64()}.get(labels.dtype.kind, pa.string())


def _result_names(model: SWSGPBase) -> list[str]:
    if model.fitted_.labels is None:
        return ["mean", "std", "lower", "upper"]
    return ["class", *(f"proba_{label}" for label in model.fitted_.labels)]
