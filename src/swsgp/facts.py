"""What a trained model says of itself in a report, and the rows that surprised it most."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from swsgp.data.tables import as_arrow
from swsgp.evaluation import Evaluation
from swsgp.fitted import Fitted
from swsgp.gp.model import SparseGP

MOST_ROWS = 10  # in the table of surprising rows
_OF_ADAM = {"learning rate": "learning_rate", "rows of a mini-batch": "batch_size"}


@dataclass(frozen=True)
class Facts:
    """What the page says beside the evaluation.

    `sections` are tables of names and values under their headings; `history` has step, seconds, bound per row and
    held-out log score; `relevance` the share of each input column; `surprising` the numbers of test rows, the most
    surprising first, with their values in the order of `columns`.
    """

    title: str
    sections: dict[str, dict[str, str]]
    history: list[tuple[int, float, float, float | None]]
    relevance: dict[str, float]
    columns: tuple[str, ...]
    surprising: list[tuple[int, list[str]]]


def facts(fitted: Fitted, evaluation: Evaluation, X: Any, title: str) -> Facts:
    """What a trained model says of itself, and the rows of the user's table X that surprised it most."""
    record, names = fitted.record, fitted.encoding.names
    settings = record["settings"]
    model = fitted.model
    parts = {}
    if isinstance(model, SparseGP):
        parts = {
            "inducing points": f"{len(model.inducing):,}",
            "active for a row": str(model.active_prediction),
            "landmarks, active for every row": f"{settings['n_landmarks']:,}",
            "form of S": settings["covariance"],
            "KL scale": f"{settings['kl_scale']:g}",
        }
    sections = {
        "Model": {
            "kind": settings["model"],
            "kernel": settings["kernel"],
            "likelihood": type(model.likelihood).__name__,
            **parts,
            "precision of training": settings["precision"],
            "chosen by the data": ", ".join(record["chosen"]) or "nothing",
        },
        "Training data": {
            "rows": f"{record['rows']:,}",
            "rows held out": f"{settings.get('n_held_out', 0):,}",
            "target": record["target"] or "not named",
            "input columns": f"{len(names):,}",
            "columns of numbers": f"{len(fitted.spread):,}",
            "missing values": settings["missing"],
        },
        "Sizes and timings": {
            "training": duration(record["seconds"]),
            "steps": f"{record['steps']:,}, ended by {record['ended_by']}",
            **{name: f"{settings[key]:g}" for name, key in _OF_ADAM.items() if key in settings},
            "seed": str(settings["seed"]),
        },
        "Versions": fitted.record["versions"],
    }
    order = np.argsort(evaluation.log_density)[:MOST_ROWS]
    return Facts(
        title=title,
        sections=sections,
        history=[tuple(report) for report in record["history"]],
        relevance=record["relevance"],
        columns=names,
        surprising=[(int(row), values) for row, values in zip(order, _values(X, names, order), strict=True)],
    )


def _values(X: Any, names: tuple[str, ...], rows: np.ndarray) -> list[list[str]]:
    """The user's own values in some rows, as text."""
    table = as_arrow(X)
    if table is None:
        return [[f"{value:.6g}" for value in row] for row in np.asarray(X, dtype=np.float64)[rows]]
    columns = [table[name].take(rows).to_pylist() for name in names]
    return [
        [f"{value:.6g}" if isinstance(value, float) else str(value) for value in row]
        for row in zip(*columns, strict=True)
    ]


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
