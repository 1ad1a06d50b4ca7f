"""What a person sees while training runs."""

import math
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from swsgp.fit.stopping import Report

# Seconds between two lines where there is no terminal to redraw a bar on.
_LINE_EVERY = 10.0
_FIRST_LINE = 2.0


class ProgressBar:
    """Rate, bound, held-out score and time left: a bar on a terminal, plain lines elsewhere, or nothing."""

    def __init__(self, n_steps: int, shown: bool, seconds: float | None = None, console: Console | None = None):
        """Training ends after so many steps, or seconds, whichever comes first."""
        self._console = console or Console(stderr=True)
        self._n_steps, self._seconds = n_steps, seconds
        self._shown = shown
        self._score: float | None = None
        self._first: Report | None = None
        # The first line comes soon, as a sign of life.
        self._last_line = time.monotonic() - _LINE_EVERY + _FIRST_LINE
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not (shown and self._console.is_terminal),
        )
        self._task = self._bar.add_task("training", total=1.0, facts="")

    def __enter__(self) -> "ProgressBar":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, report: Report) -> None:
        """Show the newest state."""
        self._score = report.score if report.score is not None else self._score
        # The time before the first report went into compilation.
        self._first = self._first or report
        n_steps, seconds = report.step - self._first.step, report.seconds - self._first.seconds
        pace = n_steps / max(seconds, 1e-9)
        left_by_steps = (self._n_steps - report.step) / pace if pace else math.inf
        left_by_clock = max(0.0, self._seconds - report.seconds) if self._seconds else math.inf
        left = min(left_by_steps, left_by_clock)
        steps = f"{report.step:,}" if left_by_clock < left_by_steps else f"{report.step:,} of {self._n_steps:,}"
        facts = f"step {steps} · " + (f"{pace:,.0f} steps/s · " if pace else "") + f"objective {report.bound:.4f}"
        if self._score is not None:
            facts += f" · held-out {self._score:.4f}"
        done = max(report.step / self._n_steps, report.seconds / self._seconds if self._seconds else 0.0)
        self._bar.update(self._task, completed=done, facts=facts)
        self._print(facts + (f" · {left:.0f} s left" if math.isfinite(left) else ""), report.step == self._n_steps)

    def say(self, text: str) -> None:
        """Show what goes on between steps."""
        self._bar.update(self._task, facts=text)
        self._print(text, False)

    def _print(self, text: str, is_last: bool) -> None:
        due = time.monotonic() - self._last_line >= _LINE_EVERY
        if self._shown and not self._console.is_terminal and (due or is_last):
            self._last_line = time.monotonic()
            self._console.print(text, highlight=False)
