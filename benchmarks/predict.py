"""What a user waits for: the program's start, one row, a million rows; each against something known, in one run.

    make bench-predict

Ours and the peer take turns; the figure is the best turn of each. Writes `results/bench-predict.md`.
"""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import gpytorch
import jax
import numpy as np
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
    text = "\n".join(lines) + "\n"
    RESULTS.write_text(text, encoding="utf-8")
    print(f"{text}\nWrote {RESULTS}")


if __name__ == "__main__":
    main()
