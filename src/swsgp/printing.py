"""What the program prints: progress, and results for people."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from swsgp.estimators.base import SWSGPBase


def console() -> "Console":
    from rich.console import Console

    return Console()


@contextmanager
def progress(what: str) -> Iterator[Callable[[Any], Any]]:
    """Counts the rows of tables that go through it: on a terminal for all to see, elsewhere silently."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    text = TextColumn("{task.description} · {task.completed:,.0f} rows")
    with Progress(SpinnerColumn(), text, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        def count(part: Any) -> Any:
            bar.advance(task, len(part[0] if isinstance(part, tuple) else part))
            return part

        yield count


def summary(model: "SWSGPBase", path: Path) -> dict[str, Any]:
    record = model.fitted_.record
    scores = [report[3] for report in record["history"] if report[3] is not None]
    return {
        "model": str(path),
        "estimator": type(model).__name__,
        "rows": record["rows"],
        "columns": len(model.fitted_.encoding.names),
        **{name: record["settings"][name] for name in record["chosen"]},
        "steps": record["steps"],
        "seconds": round(record["seconds"], 2),
        "ended_by": record["ended_by"],
        "held_out_log_score": max(scores, default=None),
    }


def facts(path: Path, header: dict[str, Any]) -> dict[str, Any]:
    """What people want to know of a file, without the model itself."""
    if header.get("kind") != "model":
        return {"file": str(path), "kind": header.get("kind"), "step": header.get("step"), **header["versions"]}
    record = {name: value for name, value in header["record"].items() if name != "history"}
    return {
        "file": str(path),
        "bytes": path.stat().st_size,
        "format": header["format"],
        "estimator": header["estimator"],
        **record,
    }


def as_lines(facts: dict[str, Any], indent: str = "") -> str:
    """Names and values, one a line, for people."""
    lines = []
    for name, value in facts.items():
        if isinstance(value, dict):
            lines += [f"{indent}{name}", as_lines(value, indent + "  ")]
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            lines.append(f"{indent}{name:<{22 - len(indent)}} {'-' if shown is None else shown}")
    return "\n".join(lines)


def print_scores(scores: dict[str, dict[str, float]]) -> None:
    from rich.table import Table as Grid

    grid = Grid("score")
    for system in scores:
        grid.add_column(system, justify="right")
    for name in next(iter(scores.values())):
        grid.add_row(name, *(f"{values[name]:.4g}" for values in scores.values()))
    console().print(grid)


def finite(scores: dict[str, dict[str, float]]) -> dict[str, dict[str, float | None]]:
    """JSON has no NaN."""
    return {
        system: {name: value if math.isfinite(value) else None for name, value in values.items()}
        for system, values in scores.items()
    }
