"""Training from files in parts beside training in memory: rows a second, memory and scores, on flights.

    SWSGP_DATA=folder make bench-streaming

Airline, but for its last 100,000 rows, which are the test; 6,000 steps of 1,024 rows with M = 50,000 and H = 16, and
the default, which solves for q(u), with M = 20,000. From files there is a quarter of the table's size in memory for
rows. Each fit is in a process of its own, whose peak memory is less that after fitting a small table. Writes
`results/bench-streaming.md`.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

RESULTS = Path(__file__).parent.parent / "results" / "bench-streaming.md"
N_TEST, N_SMALL = 100_000, 20_000
WAYS: dict[str, dict[str, Any]] = {
    "6,000 steps": {
        "preset": "paper",
        "covariance": "diag",
        "learn_inducing": False,
        "kernel": "matern12",
        "n_inducing": 50_000,
        "n_neighbors": 16,
        "batch_size": 1024,
        "learning_rate": 0.01,
        "kl_scale": 100.0,
        "max_steps": 6_000,
    },
    "the default": {"n_inducing": 20_000, "n_landmarks": 0},
}


def measure(folder: Path, way: str, from_file: bool, max_memory: str) -> dict[str, float]:
    """One fit, in this process."""
    from swsgp import SWSGPClassifier

    def fit(name: str, options: dict[str, Any]) -> Any:
        model, path = SWSGPClassifier(**options), folder / f"{name}.parquet"
        if from_file:
            return model.fit_file(path, "target", max_memory=max_memory)
        table = pq.read_table(path)
        return model.fit(table.drop_columns(["target"]), table.select(["target"]))

    small = WAYS[way] | {"n_inducing": 2_000} | ({"max_steps": 100} if "max_steps" in WAYS[way] else {})
    fit("small", small)
    before, start = _peak(), time.perf_counter()
    model = fit("train", WAYS[way])
    seconds = time.perf_counter() - start
    memory = _peak() - before
    test = pq.read_table(folder / "test.parquet")
    scores = model.evaluate(test.drop_columns(["target"]), test.select(["target"])).scores["swsgp"]
    training = model.fitted_.record["seconds"]
    return {
        "seconds": seconds,
        "training_seconds": training,
        "memory_mb": memory,
        "error": scores["error"],
        "nll": scores["nll"],
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    if len(sys.argv) > 1:
        folder, way, from_file, max_memory = sys.argv[1:]
        print(json.dumps(measure(Path(folder), way, from_file == "file", max_memory)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = pq.read_table(Path(os.environ["SWSGP_DATA"]) / "airline.parquet")
        n_train = len(whole) - N_TEST
        train = whole.slice(0, n_train)
        size = n_train * whole.num_columns * np.dtype(np.float64).itemsize
        for part, rows in (("train", train), ("small", whole.slice(0, N_SMALL)), ("test", whole.slice(n_train))):
            pq.write_table(rows, folder / f"{part}.parquet", row_group_size=100_000)
        limit = f"{size // 4_000_000}MB"
        lines = [
            "# Training from files in parts",
            "",
            f"`make bench-streaming` on {os.cpu_count()} cores: {n_train:,} flights, {size / 1e6:.0f} MB as numbers; "
            f"from files with `max_memory={limit}`.",
            "",
            "| training | rows | seconds in all | of which training | memory beside the program, MB | error | NLL |",
            "|---|---|---|---|---|---|---|",
        ]
        for way in WAYS:
            for place in ("memory", "file"):
                command = [sys.executable, __file__, name, way, place, limit]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                found = json.loads(done.stdout.splitlines()[-1])
                numbers = [f"{found[key]:.0f}" for key in ("seconds", "training_seconds", "memory_mb")]
                scores = [f"{found[key]:.4f}" for key in ("error", "nll")]
                rows_are = "in memory" if place == "memory" else "from a file in parts"
                lines.append(f"| {' | '.join([way, rows_are, *numbers, *scores])} |")
                print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
