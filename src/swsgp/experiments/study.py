"""What every experiment does alike: runs that are kept, and a table and a figure made of them."""

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from swsgp.errors import DataError, NumericalError, SettingError, SwsgpError
from swsgp.files import check_writable, replacing, write
from swsgp.ops.native import n_cores
from swsgp.serialization import versions

Case = dict[str, Any]
# Of everything that is drawn: folds, where inducing inputs start, the order of rows. It is the default everywhere.
SEED = 0


class Study:
    """The folder of one experiment at one level, "quick" or "full".

    Every run is a line of `LEVEL.jsonl`: its case (what tells it from the others) and seed, what came out, the device,
    seconds, and versions. A study that was interrupted goes on where it stopped. A run that came to no finite number is
    kept as "failed", with the reason, and one whose data or libraries are not there is left out: a case that knows so
    says it under "missing". If nothing is to be computed, those in the log alone are there.
    """

    def __init__(self, name: str, out: Path, level: str, console: Console, *, computes: bool = True):
        self.folder, self.level, self._console, self._computes = out / name, level, console, computes
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise SettingError(f"results cannot be put in {out}, which is a file; name a folder with --out.") from None
        self._log = self.folder / f"{level}.jsonl"
        check_writable(self._log)
        self.was_interrupted = False
        # Why runs are not there, with how many of them.
        self.missing: dict[str, int] = {}
        self._notes: list[str] = []

    @property
    def quick(self) -> bool:
        return self.level == "quick"

    def runs(self, cases: Iterable[Case], compute: Callable[[Case], dict[str, Any]]) -> list[dict[str, Any]]:
        """The outcome of every case, from the log or computed now, each with its case under "case".

        Ctrl-C leaves out the cases that are still to do.
        """
        return self.runs_together([[case] for case in cases], lambda own: [attempt(partial(compute, own[0]))])

    def runs_together(
        self, groups: Iterable[Sequence[Case]], compute: Callable[[Sequence[Case]], list[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """The same where the cases of a group are computed at once; see `attempt` for those that fail."""
        groups = [[json.loads(json.dumps(case)) for case in group] for group in groups]
        done = self._read()
        cases = [case for group in groups for case in group]
        left = [[case for case in group if "missing" not in case and _key(case) not in done] for group in groups]
        left = [own for own in left if own] if self._computes else []
        for case in cases:
            if "missing" in case:
                self._leave_out(case["missing"], 1)
        start = time.monotonic()
        for i, own in enumerate(left):
            self.say(f"{i + 1}/{len(left)} {_words(own)}{_time_left(start, i, len(left))}")
            started = time.monotonic()
            try:
                outcomes = compute(own)
            except KeyboardInterrupt:
                self.was_interrupted = True
                break
            except SwsgpError as error:
                self._leave_out(str(error), len(own))
                continue
            seconds = time.monotonic() - started
            facts = {"device": device(), "seconds": seconds, "versions": versions()}
            facts |= {"trained_together": len(own)} if len(own) > 1 else {}
            for case, outcome in zip(own, outcomes, strict=True):
                done[_key(case)] = {"case": case, "seed": SEED, **outcome, **facts}
                self._append(done[_key(case)])
        # What a stand-in is said to be may have changed since.
        found = [{**done[_key(case)], "case": case} for case in cases if _key(case) in done]
        good = [run for run in found if "failed" not in run]
        for run in found:
            if "failed" in run:
                self._notes.append(
                    f"Failed: {_words([run['case']])}: {run['failed'].rstrip('.')}. It is run again when its line is "
                    f"taken out of {self._log.name}."
                )
        n_missing = len(cases) - len(found)
        if n_missing:
            why = "".join(f" {n:,} since {reason}" for reason, n in self.missing.items())
            self._notes.append(f"{n_missing:,} of {len(cases):,} runs are missing.{why}")
        n_slowed = sum(bool(run.get("met_not_finite")) for run in good)
        if n_slowed:
            self._notes.append(
                f"{n_slowed:,} of {len(good):,} runs met values that are not finite, and went on with more jitter and "
                "half the rate."
            )
        if not good:
            if self.was_interrupted:
                raise KeyboardInterrupt
            raise DataError(" ".join(self.missing or self._notes))
        return good

    def _leave_out(self, reason: str, n: int) -> None:
        if reason not in self.missing:
            self.say(f"Left out: {reason}")
        self.missing[reason] = self.missing.get(reason, 0) + n

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def write_table(self, text: str) -> None:
        """The table in Markdown, shown as well, with what is missing."""
        path = self.folder / f"{self.level}.md"
        text = "\n".join([text.rstrip("\n"), *(f"\n{note}" for note in self._notes), ""])
        write(path, text.encode())
        self.say(text)
        self.say(f"Wrote {path}.")

    def write_figure(self, figure: Figure) -> None:
        """The figure as PNG and PDF."""
        figure.set_layout_engine("constrained")
        # Without a date the same runs give the same file.
        for kind, facts in (("png", {}), ("pdf", {"CreationDate": None})):
            path = self.folder / f"{self.level}.{kind}"
            with replacing(path) as new:
                figure.savefig(new, dpi=150, format=kind, metadata=facts)
            self.say(f"Wrote {path}.")
        plt.close(figure)

    def _read(self) -> dict[str, dict[str, Any]]:
        """The runs in the log; a last line that was cut off is taken away, and of two alike the later one counts."""
        if not self._log.exists():
            return {}
        text = self._log.read_text(encoding="utf-8", errors="replace")
        if text and not text.endswith("\n"):
            # The next run must not go on in its line.
            write(self._log, f"{text}\n".encode())
        lines = text.splitlines()
        runs: dict[str, dict[str, Any]] = {}
        for i, line in enumerate(lines):
            try:
                run = json.loads(line)
                runs[_key(run["case"])] = run
            except (ValueError, TypeError, KeyError, AttributeError):
                if i < len(lines) - 1:
                    raise DataError(
                        f"line {i + 1} of {self._log} is not a run; take it away, or name another folder with --out."
                    ) from None
                self.say(f"The last line of {self._log} was cut off, and is taken away.")
                write(self._log, "".join(f"{line}\n" for line in lines[:-1]).encode())
        return runs

    def _append(self, run: dict[str, Any]) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(run) + "\n")
            log.flush()
            os.fsync(log.fileno())


def attempt(compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What comes out of a run, or that it failed."""
    try:
        return compute()
    except NumericalError as error:
        return {"failed": str(error)}
    except (NotImplementedError, RecursionError):
        raise
    # What other libraries raise where a factor, or memory for it, is not to be had.
    except (np.linalg.LinAlgError, RuntimeError, MemoryError) as error:
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}


def device() -> str:
    """What computes: a GPU, or so many cores of a processor."""
    if jax.default_backend() != "cpu":
        kind: str = jax.devices()[0].device_kind
        return kind
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    n = n_cores()
    return f"{n} core{'s' if n > 1 else ''} of {names[0] if names else platform.machine()}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def spread(values: Sequence[float], digits: int = 3) -> str:
    """A mean, with the standard deviation over folds where there are several."""
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def _key(case: Case) -> str:
    """What tells a case from others. Words on a stand-in do not; its file has a digest."""
    return json.dumps({key: value for key, value in case.items() if key != "stand_in"}, sort_keys=True)


def _words(cases: Sequence[Case]) -> str:
    """What the cases have in common; a stand-in goes by its name."""
    first = ((key, v) for key, v in cases[0].items() if key not in ("sha256", "n_folds", "stand_in"))
    shared = [(key, v) for key, v in first if all(case.get(key) == v for case in cases)]
    words = " · ".join(v if isinstance(v, str) else f"{key} {v:,}" for key, v in shared if isinstance(v, str | int))
    return f"{words} · {len(cases)} at once" if len(cases) > 1 else words


def _time_left(start: float, n_done: int, n: int) -> str:
    if not n_done:
        return ""
    seconds = (time.monotonic() - start) / n_done * (n - n_done)
    return f" · about {seconds:.0f} s left" if seconds < 120 else f" · about {seconds / 60:.0f} min left"
