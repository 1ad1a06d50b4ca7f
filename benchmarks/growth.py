"""How cost grows: time of a step, memory and score against M, H and N, on flights.

    SWSGP_DATA=folder make bench-growth

The bound by Adam, 1,500 steps of 1,024 rows at a rate that falls from 0.01 to 0: per point, diagonal S, fixed Z,
Matérn-1/2, κ = M/8H. Each model is trained in a process of its own; memory is its peak in training less what it had
before, with the table and the untrained model. Writes `results/growth.csv` and `docs/growth.png`; runs that are there
already are not repeated.
"""

import csv
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from swsgp.plots import plain_ticks

ROOT = Path(__file__).parent.parent
N, M, H = 2_000_000, 100_000, 16
CASES = [
    *({"m": m, "h": H, "n": N} for m in (1_000, 10_000, 100_000, 1_000_000)),
    *({"m": M, "h": h, "n": N} for h in (4, 32, 128)),
    *({"m": 10_000, "h": H, "n": n} for n in (20_000, 200_000)),
]
STEPS = 1_500


def measure(m: int, h: int, n: int) -> dict[str, float]:
    """One model, in this process."""
    import swsgp
    from swsgp.experiments.systems import Fold, fold, score
    from swsgp.gp.covariances import Matern12
    from swsgp.gp.prediction import Predictor

    data = fold("airline", 0, 10)
    part = Fold(data.x[:n].copy(), data.y[:n].copy(), data.x_test[:50_000], data.y_test[:50_000], True, 1.0)
    del data
    model = swsgp.create(
        part.x, Matern12(np.full(8, 3.0)), part.likelihood, swsgp.PerPoint(h), n_inducing=m, placement="subset"
    )
    # From here on the peak is that of training.
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory("VmRSS")
    times = []

    def clock(report: Any, _: Any) -> None:
        times.append((report.step, report.seconds))

    settings = swsgp.Settings(steps=STEPS, batch_size=1024, kl_scale=m / (8 * h))
    start = time.perf_counter()
    trained = swsgp.train(model, part.x, part.y, settings, callback=clock)
    seconds = time.perf_counter() - start
    after = _memory("VmHWM")
    # Between two searches: the shortest time of a step among the dispatches.
    steps = np.diff([step for step, _ in times])
    step_ms = 1e3 * min(np.diff([at for _, at in times])[steps > 8] / steps[steps > 8])
    scores = score(part, Predictor(trained.model))
    found = {"step_ms": step_ms, "fit_seconds": seconds, "memory_mb": after - before}
    return found | {"error": scores["error"], "nll": scores["nll"]}


def _memory(kind: str) -> float:
    """What the system says of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) / 1024


def figure(rows: list[dict[str, float]]) -> Any:
    panels_of = (("m", "M", {"h": H, "n": N}), ("h", "H", {"m": M, "n": N}), ("n", "N", {"m": 10_000, "h": H}))
    kinds = (
        *(("step_ms", "a step of 1,024 rows, ms"), ("fit_seconds", "1,500 steps with searches, s")),
        *(("memory_mb", "memory beside the table, MB"), ("nll", "NLL of test rows")),
    )
    shown, panels = plt.subplots(len(kinds), 3, figsize=(9, 9), sharex="col", sharey="row")
    for column, (name, label, fixed) in enumerate(panels_of):
        own = sorted((r for r in rows if all(r[k] == v for k, v in fixed.items())), key=lambda r: r[name])
        for row, (key, words) in enumerate(kinds):
            panel = panels[row, column]
            panel.plot([r[name] for r in own], [r[key] for r in own], marker="o", color="seagreen")
            panel.set_xscale("log")
            if key != "nll":
                panel.set_yscale("log")
                plain_ticks(panel.yaxis)
            if not column:
                panel.set_ylabel(words, fontsize=8)
        others = ", ".join(f"{k.upper()} = {v:,}" for k, v in fixed.items())
        panels[0, column].set_title(f"against {label} ({others})", fontsize=9)
        panels[-1, column].set_xlabel(label)
    shown.set_layout_engine("constrained")
    return shown


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(*map(int, sys.argv[1:]))))
        return
    log = ROOT / "results" / "growth.csv"
    rows: list[dict[str, float]] = []
    if log.exists():
        with log.open(encoding="utf-8") as file:
            rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    for case in CASES:
        if any(all(row[key] == value for key, value in case.items()) for row in rows):
            continue
        command = [sys.executable, __file__, *map(str, case.values())]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows.append(case | json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
        with log.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    figure(rows).savefig(ROOT / "docs" / "growth.png", dpi=150)


if __name__ == "__main__":
    main()
