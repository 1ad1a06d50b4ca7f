"""What every experiment does alike: runs that are kept, and a table and a figure made of them."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from swsgp.files import replacing, write
from swsgp.serialization import versions

Case = dict[str, Any]
# Of everything that is drawn: folds, where inducing inputs start, the order of rows. It is the default everywhere.
SEED = 0


class Study:
    """The folder of one experiment at one level, "quick" or "full".

    Every run is a line of `LEVEL.jsonl`: its case (all that it depends on) and seed, what came out, seconds, and
    versions. A study that was interrupted goes on where it stopped.
    """

    def __init__(self, name: str, out: Path, level: str, console: Console):
        self.folder, self.level, self._console = out / name, level, console
        self.folder.mkdir(parents=True, exist_ok=True)
        self._log = self.folder / f"{level}.jsonl"

    @property
    def quick(self) -> bool:
        return self.level == "quick"

    def runs(self, cases: Iterable[Case], compute: Callable[[Case], dict[str, Any]]) -> list[dict[str, Any]]:
        """The outcome of every case, from the log or computed now, each with its case under "case".

        Ctrl-C leaves out the cases that are still to do.
        """
        cases = [json.loads(json.dumps(case)) for case in cases]
        lines = self._log.read_text(encoding="utf-8").splitlines() if self._log.exists() else []
        done = [json.loads(line) for line in lines]
        left = [case for case in cases if not any(run["case"] == case for run in done)]
        start = time.monotonic()
        for i, case in enumerate(left):
            self.say(f"{i + 1}/{len(left)} {_words(case)}{_time_left(start, i, len(left))}")
            started = time.monotonic()
            try:
                outcome = compute(case)
            except KeyboardInterrupt:
                if not any(run["case"] in cases for run in done):
                    raise
                self.say(f"Interrupted: {len(left) - i} runs are left, which the same command goes on with.")
                break
            seconds = time.monotonic() - started
            done.append({"case": case, "seed": SEED, **outcome, "seconds": seconds, "versions": versions()})
            write(self._log, "".join(json.dumps(run) + "\n" for run in done).encode())
        return [run for case in cases for run in done if run["case"] == case]

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def write_table(self, text: str) -> None:
        """The table in Markdown, shown as well."""
        path = self.folder / f"{self.level}.md"
        write(path, text.encode())
        self.say(text)
        self.say(f"Wrote {path}.")

    def write_figure(self, figure: Figure) -> None:
        """The figure as PNG and PDF."""
        figure.set_layout_engine("constrained")
        for kind in ("png", "pdf"):
            path = self.folder / f"{self.level}.{kind}"
            with replacing(path) as new:
                figure.savefig(new, dpi=150, format=kind)
            self.say(f"Wrote {path}.")
        plt.close(figure)


def markdown(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def spread(values: Sequence[float], digits: int = 3) -> str:
    """A mean, with the standard deviation over folds where there are several."""
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def beside(ours: float, paper: float | None, digits: int = 3) -> tuple[str, str]:
    """The paper's number, and how much ours is above it; empty where the paper gives none."""
    return ("", "") if paper is None else (f"{paper:g}", f"{ours - paper:+.{digits}f}")


def _words(case: Case) -> str:
    return " · ".join(str(value) for value in case.values() if isinstance(value, str | int))


def _time_left(start: float, n_done: int, n: int) -> str:
    if not n_done:
        return ""
    seconds = (time.monotonic() - start) / n_done * (n - n_done)
    return f" · about {seconds:.0f} s left" if seconds < 120 else f" · about {seconds / 60:.0f} min left"
