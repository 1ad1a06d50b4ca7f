"""What a user waits for: the program's start, one row, a million rows; each against something known, in one run.

    make bench-predict

Ours and the peer take turns; the figure is the best turn of each. Writes `results/bench-predict.md`.
"""

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import gpytorch
import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

import swsgp

N, D = 40_000, 9
M, H = 10_000, 16
PEER_M = 1024
LONG = 1_000_000
TURNS = 5
RESULTS = Path(__file__).parent.parent / "results" / "bench-predict.md"


def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D))
    return x, np.sin(2 * x[:, 0]) + np.abs(x[:, 1]) + 0.1 * rng.normal(size=N)


def ours(x: np.ndarray, y: np.ndarray) -> swsgp.SWSGPRegressor:
    """How it was trained makes no difference to the time of a prediction."""
    return swsgp.SWSGPRegressor(n_inducing=M, n_neighbors=H, max_steps=500, early_stopping=False).fit(x, y)


class _Svgp(gpytorch.models.ApproximateGP):
    def __init__(self, inducing: torch.Tensor):
        q = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
        super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, q))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5, ard_num_dims=D))

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def peer(x: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Mean and standard deviation of GPyTorch's SVGP, with its caches filled."""
    torch.manual_seed(0)
    model = _Svgp(torch.from_numpy(x[:PEER_M].astype(np.float32))).eval()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().eval()

    def predict(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            found = likelihood(model(torch.from_numpy(rows.astype(np.float32))))
            return found.mean.numpy(), found.stddev.numpy()

    return predict


def seconds(work: Callable[[], object], times: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - start) / times


def best(works: list[Callable[[], object]], times: int, turns: int) -> list[float]:
    """The best turn of each, in turns; one before them warms up."""
    for work in works:
        seconds(work, min(times, 5))
    return [min(column) for column in zip(*([seconds(w, times) for w in works] for _ in range(turns)), strict=True)]


def start_up() -> dict[str, float]:
    """Seconds of whole processes."""
    programs = {
        "`python -c pass`": [sys.executable, "-c", "pass"],
        "`import swsgp`": [sys.executable, "-c", "import swsgp"],
        "`swsgp --help`": [str(Path(sys.executable).with_name("swsgp")), "--help"],
        "`import torch, gpytorch`": [sys.executable, "-c", "import torch, gpytorch"],
        "`import jax`": [sys.executable, "-c", "import jax"],
    }
    runs = [lambda c=command: subprocess.run(c, check=True, capture_output=True) for command in programs.values()]
    return dict(zip(programs, best(runs, 1, TURNS), strict=True))


def with_a_million(folder: Path) -> tuple[float, float, float, float]:
    """M = 1,000,000 and H = 16: seconds to import what loading takes in a new process, and to load the model then,
    seconds of one row, and MB of the model's file."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1_000_000, 8))
    y = np.sin(2 * x[:, 0]) + np.abs(x[:, 1]) + 0.1 * rng.normal(size=len(x))
    options = {"preset": "paper", "covariance": "diag", "learn_inducing": False, "max_steps": 200}
    model = swsgp.SWSGPRegressor(n_inducing=len(x), n_neighbors=H, **options).fit(x, y)
    path = folder / "million.swsgp"
    model.save(path)
    code = (
        "import sys, time, swsgp; t = [time.perf_counter()]; load = swsgp.load; t.append(time.perf_counter()); "
        "load(sys.argv[1]); t.append(time.perf_counter()); print(t[1] - t[0], t[2] - t[1])"
    )
    command = [sys.executable, "-c", code, str(path)]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() for _ in range(TURNS)]
    imports, loads = (min(map(float, column)) for column in zip(*runs, strict=True))
    rows = [x[i : i + 1].copy() for i in range(100)]
    one = best([lambda: [model.predict(row, return_std=True) for row in rows]], 1, 10)[0] / len(rows)
    return imports, loads, one, path.stat().st_size / 1e6


def streamed(model: swsgp.SWSGPRegressor, folder: Path, n_rows: int) -> tuple[float, float]:
    """Rows a second of `swsgp predict` from file to file, and the peak memory of its process in MB."""
    model.save(folder / "m.swsgp")
    schema = pa.schema([(f"x{j}", pa.float64()) for j in range(D)])
    with pq.ParquetWriter(folder / "rows.parquet", schema) as file:
        for start in range(0, n_rows, 100_000):
            x = np.random.default_rng(start).normal(size=(100_000, D))
            file.write_table(pa.table({f"x{j}": x[:, j] for j in range(D)}))
    program = str(Path(sys.executable).with_name("swsgp"))
    files = [str(folder / name) for name in ("m.swsgp", "rows.parquet", "out.parquet")]
    # The peak of a child is known to a parent that has no other.
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stderr=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)"
    )
    command = [sys.executable, "-c", code, program, "predict", *files[:2], "--out", files[2]]
    start = time.perf_counter()
    peak = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return n_rows / (time.perf_counter() - start), peak


def main() -> None:
    lines = [
        "# Time of a start and of predictions",
        "",
        f"Best of {TURNS} or more turns in one run of `make bench-predict`. {os.cpu_count()} cores, "
        f"{platform.machine()}, Python {platform.python_version()}, JAX {jax.__version__}, PyTorch {version('torch')}, "
        f"GPyTorch {version('gpytorch')}, scikit-learn {version('scikit-learn')}, swsgp {swsgp.__version__}.",
        "",
        "| start | seconds |",
        "|---|---|",
    ]
    lines += [f"| {name} | {value:.2f} |" for name, value in start_up().items()]
    x, y = table()
    model, svgp = ours(x, y), peer(x)
    row = x[:1].copy()
    own, theirs = best([lambda: model.predict(row, return_std=True), lambda: svgp(row)], 200, 20)
    lines += [
        "",
        f"Mean and standard deviation of one row of {D} columns, M = {M:,} and H = {H} against "
        f"GPyTorch's SVGP with M = {PEER_M:,}:",
        "",
        "| | ms | times faster |",
        "|---|---|---|",
        f"| `SWSGPRegressor.predict` | {1e3 * own:.3f} | {theirs / own:.1f} |",
        f"| GPyTorch SVGP | {1e3 * theirs:.3f} | |",
    ]
    many = np.random.default_rng(1).normal(size=(LONG, D))
    trees = HistGradientBoostingRegressor(random_state=0).fit(x, y)
    works = [
        lambda: model.predict(many, return_std=True),
        lambda: trees.predict(many),
        lambda: svgp(many[: LONG // 50]),
    ]
    own, boosted, theirs = best(works, 1, TURNS)
    theirs *= 50
    lines += [
        "",
        f"{LONG:,} rows (GPyTorch's time is that of a fiftieth of them, 50 times):",
        "",
        "| | seconds | rows a second |",
        "|---|---|---|",
        f"| `SWSGPRegressor.predict`, mean and standard deviation | {own:.1f} | {LONG / own:,.0f} |",
        f"| scikit-learn's HistGradientBoosting, mean only | {boosted:.1f} | {LONG / boosted:,.0f} |",
        f"| GPyTorch SVGP, mean and standard deviation | {theirs:.1f} | {LONG / theirs:,.0f} |",
    ]
    with tempfile.TemporaryDirectory() as name:
        imports, load, one, size = with_a_million(Path(name))
        lines += [
            "",
            f"A model with M = 1,000,000, H = {H} and 8 columns, random ({size:.0f} MB): loaded in {load:.2f} "
            f"s, after {imports:.2f} s of imports in a new process; one row takes {1e3 * one:.3f} ms.",
            "",
            f"`swsgp predict` from Parquet to Parquet with M = {M:,}: mean, standard deviation and interval",
            "",
            "| rows | rows a second | peak memory, MB |",
            "|---|---|---|",
        ]
        named = swsgp.SWSGPRegressor(n_inducing=M, n_neighbors=H, max_steps=100)
        named.fit(pa.table({f"x{j}": x[:, j] for j in range(D)}), y)
        for n_rows in (LONG, 10 * LONG):
            rate, peak = streamed(named, Path(name), n_rows)
            lines.append(f"| {n_rows:,} | {rate:,.0f} | {peak:,.0f} |")
    text = "\n".join(lines) + "\n"
    RESULTS.write_text(text, encoding="utf-8")
    print(f"{text}\nWrote {RESULTS}")


if __name__ == "__main__":
    main()
