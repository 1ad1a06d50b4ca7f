"""Ours and every peer on the same splits, in one run on one machine: time, memory and accuracy.

    SWSGP_DATA=folder make bench

Each system runs in a process of its own with its defaults, or with what its documentation suggests: 90% of the rows
to train on, 10% to test (of airline the first 200,000 and the last 100,000); inputs, and targets that are numbers,
are standardised by the training rows. A peer that trains by stochastic gradients ends after 100 epochs or 90 seconds,
and any system after five minutes. Peers that are not installed are left out. Writes `results/bench.csv`,
`results/bench.md` and `docs/comparison.png`. `--sets` and `--systems` choose a part, `--out` another folder; runs
that are in the CSV file already are not repeated.
"""

import argparse
import csv
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from swsgp import metrics
from swsgp.data.sets import load_set

SETS = ("powerplant", "protein", "eeg", "airline")
EPOCHS, PEER_SECONDS, MOST_SECONDS = 100, 90.0, 300
ONE_ROW_TIMES = 100
# Mean and variance of the target, or the probability of class 1 and nothing.
Predict = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray | None]]
Fit = Callable[[np.ndarray, np.ndarray, bool], Predict]


def split(name: str) -> tuple[np.ndarray, ...]:
    """Inputs and targets to train on and to test with; inputs, and targets that are numbers, standardised."""
    data = load_set(name)
    if name == "airline":
        train, test = np.arange(200_000), np.arange(len(data.x) - 100_000, len(data.x))
    else:
        order = np.random.default_rng(0).permutation(len(data.x))
        train, test = np.split(order, [int(0.9 * len(order))])
    x, y, x_test, y_test = data.x[train], data.y[train], data.x[test], data.y[test]
    scale = np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)
    x, x_test = (x - x.mean(axis=0)) / scale, (x_test - x.mean(axis=0)) / scale
    if len(np.unique(y)) > 2:
        y, y_test = (y - y.mean()) / y.std(), (y_test - y.mean()) / y.std()
    return x, y, x_test, y_test


def swsgp(x: np.ndarray, y: np.ndarray, is_classes: bool) -> Predict:
    import swsgp

    if is_classes:
        classifier = swsgp.SWSGPClassifier().fit(x, y)
        return lambda rows: (classifier.predict_proba(rows)[:, 1], None)
    regressor = swsgp.SWSGPRegressor().fit(x, y)

    def predict(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, std = regressor.predict(rows, return_std=True)
        return mean, std**2

    return predict


def svgp(size: int) -> Fit:
    """GPyTorch's SVGP: ARD Matérn-5/2, learned inducing inputs, full covariance, batches of 1,024, Adam at 0.01."""

    def fit(x: np.ndarray, y: np.ndarray, is_classes: bool) -> Predict:
        import gpytorch
        import torch

        torch.manual_seed(0)
        inputs = torch.tensor(x, dtype=torch.float32, device=device())
        q = gpytorch.variational.CholeskyVariationalDistribution(size)
        start = inputs[torch.randperm(len(x))[:size]].clone()
        kind = gpytorch.variational.VariationalStrategy
        model = gpytorch_model(lambda own: kind(own, start, q, learn_inducing_locations=True), x.shape[1])
        epoch = lambda: ((rows, model(inputs[rows])) for rows in torch.randperm(len(x)).split(1024))  # noqa: E731
        return _trained(model, epoch, y, is_classes)

    return fit


def vnngp(x: np.ndarray, y: np.ndarray, is_classes: bool) -> Predict:
    """GPyTorch's VNNGP: every row an inducing point, 32 neighbours, batches of 256."""
    import gpytorch
    import torch

    torch.manual_seed(0)
    inputs = torch.tensor(x, dtype=torch.float32, device=device())
    q = gpytorch.variational.MeanFieldVariationalDistribution(len(x))
    kind = gpytorch.variational.NNVariationalStrategy
    model = gpytorch_model(lambda own: kind(own, inputs, q, k=32, training_batch_size=256, jitter_val=1e-3), x.shape[1])

    def epoch() -> Any:
        for _ in range(model.variational_strategy._total_training_batches):
            output = model(None)
            yield model.variational_strategy.current_training_indices, output

    return _trained(model, epoch, y, is_classes)


def device() -> str:
    """Where PyTorch computes."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def gpytorch_model(strategy: Callable[[Any], Any], n_columns: int) -> Any:
    """A sparse GP of GPyTorch: a constant mean, and an ARD Matérn-5/2 covariance."""
    import gpytorch

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            super().__init__(strategy(self))
            self.mean_module = gpytorch.means.ConstantMean()
            kernel = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=n_columns)
            self.covar_module = gpytorch.kernels.ScaleKernel(kernel)

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

        def __call__(self, x: Any, prior: bool = False, **options: Any) -> Any:
            # VNNGP draws its own rows where it is called without any.
            if isinstance(self.variational_strategy, gpytorch.variational.NNVariationalStrategy):
                return self.variational_strategy(x=x, prior=False, **options)
            return super().__call__(x, prior=prior, **options)

    return Model().to(device())


def _trained(model: Any, epoch: Callable[[], Any], y: np.ndarray, is_classes: bool) -> Predict:
    import gpytorch
    import torch

    target = torch.tensor(y, dtype=torch.float32, device=device())
    kinds = gpytorch.likelihoods
    likelihood = (kinds.BernoulliLikelihood() if is_classes else kinds.GaussianLikelihood()).to(device())
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, len(y))
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    start = time.perf_counter()

    def train() -> None:
        for _ in range(EPOCHS):
            # A model's output is asked for after the gradients of the step before are gone.
            for rows, output in epoch():
                optimiser.zero_grad()
                (-bound(output, target[rows])).backward()
                optimiser.step()
                if time.perf_counter() - start > PEER_SECONDS:
                    return

    # Where rows repeat, three tries with a growing jitter are too few.
    with gpytorch.settings.cholesky_max_tries(6):
        train()
    model.eval()
    likelihood.eval()

    def predict(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        with torch.no_grad(), gpytorch.settings.cholesky_max_tries(6):
            parts = torch.tensor(rows, dtype=torch.float32, device=device()).split(4096)
            found = [likelihood(model(part)) for part in parts]
            mean, variance = (torch.cat([getattr(p, k) for p in found]).cpu().numpy() for k in ("mean", "variance"))
        return mean.astype(float), None if is_classes else variance.astype(float)

    return predict


def gpboost(x: np.ndarray, y: np.ndarray, is_classes: bool) -> Predict:
    """GPBoost's Vecchia approximation with 20 neighbours."""
    import gpboost

    model = gpboost.GPModel(
        gp_coords=x,
        cov_function="matern_ard",
        cov_fct_shape=2.5,
        gp_approx="vecchia",
        num_neighbors=20,
        likelihood="bernoulli_probit" if is_classes else "gaussian",
    )
    model.fit(y=y)

    def predict(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        found = model.predict(gp_coords_pred=rows, predict_var=not is_classes, predict_response=True)
        return found["mu"], None if is_classes else found["var"]

    return predict


def boosting(x: np.ndarray, y: np.ndarray, is_classes: bool) -> Predict:
    """scikit-learn's HistGradientBoosting; for numbers with the variance of its errors on a tenth of the rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    if is_classes:
        classifier = HistGradientBoostingClassifier(random_state=0).fit(x, y)
        return lambda rows: (classifier.predict_proba(rows)[:, 1], None)
    order = np.random.default_rng(0).permutation(len(x))
    kept, held = np.split(order, [int(0.9 * len(order))])
    part = HistGradientBoostingRegressor(random_state=0).fit(x[kept], y[kept])
    variance = float(np.mean((y[held] - part.predict(x[held])) ** 2))
    regressor = HistGradientBoostingRegressor(random_state=0).fit(x, y)
    return lambda rows: (regressor.predict(rows), np.full(len(rows), variance))


# The function of each, and the package that it needs.
SYSTEMS: dict[str, tuple[Fit, str]] = {
    "swsgp": (swsgp, "swsgp"),
    **{f"GPyTorch SVGP-{size}": (svgp(size), "gpytorch") for size in (256, 1024, 2048)},
    "GPyTorch VNNGP": (vnngp, "gpytorch"),
    "GPBoost Vecchia-20": (gpboost, "gpboost"),
    "HistGradientBoosting": (boosting, "sklearn"),
}


def measure(system: str, name: str) -> dict[str, float | str]:
    """One system on one data set, in this process."""
    x, y, x_test, y_test = split(name)
    is_classes = len(np.unique(y)) == 2
    start = time.perf_counter()
    predict = SYSTEMS[system][0](x, y, is_classes)
    fit_seconds = time.perf_counter() - start
    predict(x_test[:1])
    start = time.perf_counter()
    for i in range(ONE_ROW_TIMES):
        predict(x_test[i : i + 1])
    one_row = (time.perf_counter() - start) / ONE_ROW_TIMES
    predict(x_test)
    start = time.perf_counter()
    mean, variance = predict(x_test)
    bulk = len(x_test) / (time.perf_counter() - start)
    if is_classes:
        p = np.stack([1 - mean, mean], axis=1)
        size, nll = metrics.error_rate(y_test.astype(int), p), metrics.class_nll(y_test.astype(int), p)
        coverage: float | str = ""
    else:
        assert variance is not None
        size, nll = metrics.rmse(y_test, mean), metrics.gaussian_nll(y_test, mean, variance)
        ends = (mean + sign * 1.959964 * np.sqrt(variance) for sign in (-1, 1))
        coverage = metrics.coverage(y_test, *ends)
    return {
        "fit_seconds": fit_seconds,
        "one_row_ms": 1e3 * one_row,
        "rows_a_second": bulk,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "rmse_or_error": size,
        "nll": nll,
        "coverage": coverage,
    }


COLUMNS = ("fit_seconds", "one_row_ms", "rows_a_second", "peak_memory_mb", "rmse_or_error", "nll", "coverage")


def measured_alone(system: str, name: str) -> dict[str, float | str]:
    """The same in a process of its own; what went wrong where it did."""
    command = [sys.executable, __file__, "--one", system, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return {"trouble": f"not done in {MOST_SECONDS} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"ended with code {done.returncode}"
        return {"trouble": last.split(":")[0][:60]}
    found: dict[str, float | str] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(rows: list[dict[str, Any]]) -> str:
    head = (
        *("data", "system", "fit, s", "ours at its NLL after, s", "one row, ms", "rows a second", "peak memory, MB"),
        *("RMSE or error", "NLL", "coverage of 95%"),
    )
    lines = [f"# Ours and peers\n\n`make bench`, {hardware()}.\n", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        if row["trouble"]:
            lines.append(f"| {row['data']} | {row['system']} | {row['trouble']} |" + " |" * 7)
            continue
        own = next((r for r in rows if (r["data"], r["system"], r["trouble"]) == (row["data"], "swsgp", "")), None)
        reached = ""
        if own is not None and own is not row:
            reached = f"{float(own['fit_seconds']):.0f}" if float(own["nll"]) <= float(row["nll"]) else "not reached"
        coverage = f"{float(row['coverage']):.3f}" if row["coverage"] != "" else ""
        fit, one, many, peak, size, nll = (float(row[column]) for column in COLUMNS[:-1])
        cells = (
            *(row["data"], row["system"], f"{fit:.1f}", reached, f"{one:.2f}", f"{many:,.0f}", f"{peak:,.0f}"),
            *(f"{size:.3f}", f"{nll:.3f}", coverage),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def figure(rows: list[dict[str, Any]]) -> Any:
    """NLL against the time to fit, a panel for each data set."""
    rows = [row for row in rows if not row["trouble"]]
    names = [name for name in SETS if any(row["data"] == name for row in rows)]
    shown, panels = plt.subplots(1, len(names), figsize=(3.4 * len(names), 3.6), squeeze=False)
    for panel, name in zip(panels[0], names, strict=True):
        for (system, _), marker in zip(SYSTEMS.items(), "o^sDvPX", strict=True):
            own = [row for row in rows if (row["data"], row["system"]) == (name, system)]
            panel.scatter(
                [float(row["fit_seconds"]) for row in own],
                [float(row["nll"]) for row in own],
                marker=marker,
                color="seagreen" if system == "swsgp" else None,
                s=70 if system == "swsgp" else 40,
                label=system,
            )
        panel.set(title=name, xlabel="seconds to fit", xscale="log")
    panels[0, 0].set_ylabel("NLL of the test rows")
    shown.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    shown.set_layout_engine("constrained")
    return shown


def hardware() -> str:
    """The processor, and the versions of everything that was compared."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    parts = [
        f"{os.cpu_count()} cores of {names[0] if names else platform.machine()}",
        f"Python {sys.version.split()[0]}",
    ]
    for package in ("swsgp", "jax", "torch", "gpytorch", "gpboost", "scikit-learn"):
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--one", nargs=2, metavar=("SYSTEM", "DATA"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(*asked.one)))
        return
    for folder in ("results", "docs"):
        (asked.out / folder).mkdir(parents=True, exist_ok=True)
    log = asked.out / "results" / "bench.csv"
    rows: list[dict[str, Any]] = list(csv.DictReader(log.open(encoding="utf-8"))) if log.exists() else []
    for name in asked.sets:
        for system in asked.systems:
            if find_spec(SYSTEMS[system][1]) is None:
                print(f"{system}: not installed, left out", flush=True)
                continue
            if any((row["data"], row["system"]) == (name, system) for row in rows):
                continue
            row = {"data": name, "system": system, "trouble": "", **dict.fromkeys(COLUMNS, "")}
            rows.append(row | measured_alone(system, name))
            print(rows[-1], flush=True)
            rows.sort(key=lambda r: (r["data"] not in SETS, r["data"], list(SYSTEMS).index(r["system"])))
            with log.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, row)
                writer.writeheader()
                writer.writerows(rows)
    (asked.out / "results" / "bench.md").write_text(table(rows), encoding="utf-8")
    figure(rows).savefig(asked.out / "docs" / "comparison.png", dpi=150)


if __name__ == "__main__":
    main()
