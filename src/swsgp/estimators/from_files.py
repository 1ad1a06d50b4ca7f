"""Training on a table that need not fit into memory.

One pass over it gives an overview: its length, the values of text columns and a sample, which scaling, starting
inducing inputs and hyper-parameters come from. A second one puts the scaled rows, shuffled, in a store on disk.
Training then reads the store, a part at a time.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from swsgp import processes
from swsgp.data.batches import n_lanes_of
from swsgp.data.overview import Overview, complete_parts, look, n_bytes_of, rows_for
from swsgp.data.stores import Store
from swsgp.data.table_files import Table, input_names, is_in_parts, listed
from swsgp.data.tables import as_vector
from swsgp.errors import DataError, SettingError
from swsgp.estimators.base import SWSGPBase, seed_of
from swsgp.estimators.training import Outcome, climb_from, solve
from swsgp.fit.defaults import OTHER_SYSTEMS
from swsgp.fit.shards import Shards
from swsgp.fitted import Fitted


def fit_file(
    model: SWSGPBase,
    table: Table,
    target: str,
    columns: Any,
    max_memory: Any,
    checkpoint: Any,
    resume: bool,
    workspace: Any,
) -> None:
    """Train a model on a table in files; `SWSGPBase.fit_file` says what the parameters are."""
    if model.model in OTHER_SYSTEMS:
        raise SettingError(f"model={model.model!r} learns from a table in memory; use fit.")
    # Listed once: a file that goes away is then missed by its name.
    table = listed(table)
    if not is_in_parts(table):
        raise DataError(f"{table} is a CSV file, whose types only its last row tells; turn it into Parquet.")
    names = input_names(table, target, columns or [], [])
    limit, seed, verbose = n_bytes_of(max_memory), seed_of(model.random_state), bool(model.verbose)
    # Inducing inputs start at rows.
    least = int(model.n_inducing) if isinstance(model.n_inducing, Integral) else 0
    overview = look(table, names, target, model.missing, limit, model.max_categories, seed, least)
    observed, inputs = overview.sample.select([target]), overview.sample.drop_columns([target])
    is_classifier = hasattr(model, "predict_proba")
    classes = as_vector(overview.labels) if is_classifier and overview.labels is not None else None
    start, x, y = model._start(inputs, observed, classes, overview, seed)
    x, y = start.inputs.apply(x), start.scaled(y)
    chosen = start.record["settings"]
    held, apart = None, np.zeros(0, dtype=int)
    if chosen["n_held_out"] and not chosen["solves"]:
        n = chosen["n_held_out"]
        held, apart = (x[:n], y[:n]), overview.places[:n]
    with _folder(workspace) as folder:
        seen = hashlib.blake2b()
        rows = _scaled_rows(model, start, overview, table, names, target, limit, apart, seen)
        store = _stored(folder, rows, overview.n_rows - len(apart), x.shape[1], chosen, limit, seed)
        processes.check_same("the table", seen.hexdigest())
        processes.check_same("the settings", repr((checkpoint is not None, resume, limit)))
        done: Outcome
        with processes.interruptible():
            if chosen["solves"]:
                done = solve(start, x, y, checkpoint, resume, verbose, store)
            else:
                done = climb_from(start, store, held, checkpoint, resume, verbose)
        model._take(done, overview.n_rows)


def _scaled_rows(
    model: SWSGPBase,
    start: Fitted,
    overview: Overview,
    table: Table,
    names: list[str],
    target: str,
    limit: int,
    apart: np.ndarray,
    seen: Any,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The rows of a table as the model takes them, but for those whose numbers are in `apart`; `seen` digests all."""
    encoding = start.encoding
    words = [f"column '{encoding.names[source]}'" for source in encoding.sources]
    n = 0
    for part in complete_parts(table, names, target, model.missing, limit, len(words) + 1):
        x = encoding.apply(part.drop_columns([target]))
        start.inputs.check_reach(x, words)
        y = model._as_numbers(as_vector(part[target]), start.labels)
        start.sparse.likelihood.check(y)
        if start.target is not None:
            start.target.check_reach(y, ["the target"])
        seen.update(x.tobytes())
        seen.update(y.tobytes())
        kept = ~np.isin(np.arange(n, n + len(x)), apart)
        n += len(x)
        yield start.inputs.apply(x)[kept], start.scaled(y)[kept]
    if n != overview.n_rows:
        raise DataError(f"{table} had {overview.n_rows:,} rows, and now has {n:,}; start again when it is at rest.")


def _stored(
    folder: Path,
    rows: Iterator[tuple[np.ndarray, np.ndarray]],
    n_rows: int,
    n_columns: int,
    chosen: dict[str, Any],
    limit: int,
    seed: int,
) -> Store:
    """In parts of which three, the last, the one in use and the next, take half of the memory.

    Rows and neighbours are there as they were read, padded, and where steps are taken.
    """
    size = np.dtype(chosen["precision"]).itemsize
    n_bytes = 3 * (3 * size * (n_columns + 2) + 12 * chosen["n_neighbors"])
    # Of all processes, which may share a disk.
    on_disk = n_rows * (size * (n_columns + 2) + 4 * chosen["n_neighbors"])
    free = shutil.disk_usage(folder).free
    if on_disk > free:
        raise SettingError(
            f"{n_rows:,} rows take about {on_disk / 1e9:.1f} GB on disk during training, and {folder} has "
            f"{free / 1e9:.1f} GB; name a folder with more room as the workspace."
        )
    in_a_part = rows_for(limit / 2, n_bytes)
    if in_a_part < min(n_rows, 2 * chosen["batch_size"]):
        raise SettingError(
            f"max_memory holds parts of {in_a_part:,} rows, too few for batches of {chosen['batch_size']:,}; raise it."
        )
    n_parts = -(-n_rows // in_a_part)
    is_whole = chosen["active"] == "union"
    shards = Shards(1 if is_whole else n_lanes_of(n_rows, min(chosen["batch_size"], n_rows)), is_whole)
    return Store.write(folder, rows, n_parts, chosen["precision"], seed, shards.n_lanes, shards.own_lanes)


@contextmanager
def _folder(workspace: Any) -> Iterator[Path]:
    """A new folder for a store, in the workspace if one was named; it is gone afterwards."""
    if workspace is not None:
        Path(workspace).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="swsgp-", dir=workspace) as name, processes.removing(Path(name)):
        yield Path(name)
