"""Accuracy and time of the defaults on real data sets, and of peers in the same run.

    SWSGP_DATA=folder make bench-accuracy

90% of the rows to train on, 10% to test, by `numpy.random.default_rng(seed).permutation`; airline has its first 200,000
rows to train on and its last 100,000 to test. Targets are standardised by the training rows, and so are the inputs of
the peers. Writes `results/bench-accuracy.md`, and adds each run as a line to `results/bench-accuracy.jsonl`; runs that
are there already are not repeated. `--sets`, `--seeds`, `--systems` and `--out` choose a part of it and another place.
"""

import argparse
import json
import os
import time
from pathlib import Path

import jax
import numpy as np

import swsgp
from swsgp import metrics
from swsgp.data.sets import load_set

SETS = ("powerplant", "kin8nm", "protein", "eeg", "credit", "spam", "airline")
# The NLL, and RMSE or error, that are asked for.
LIMITS = {
    "powerplant": (-0.54, 0.150),
    "kin8nm": (0.18, 0.295),
    "protein": (0.65, 0.560),
    "eeg": (0.15, 0.045),
    "credit": (0.44, None),
    "spam": (0.17, 0.055),
    "airline": (0.53, 0.27),
}
# GPyTorch's SVGP: epochs, and seconds after which it stops.
EPOCHS, MOST_SECONDS = 100, 90.0


def split(name: str, seed: int) -> tuple[np.ndarray, ...]:
    data = load_set(name)
    if name == "airline":
        return data.x[:200_000], data.y[:200_000], data.x[-100_000:], data.y[-100_000:]
    order = np.random.default_rng(seed).permutation(len(data.x))
    train, test = order[: int(0.9 * len(order))], order[int(0.9 * len(order)) :]
    return data.x[train], data.y[train], data.x[test], data.y[test]


def ours(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray, is_classes: bool) -> dict:
    start = time.perf_counter()
    model = (swsgp.SWSGPClassifier if is_classes else swsgp.SWSGPRegressor)().fit(x, y)
    seconds = time.perf_counter() - start
    scores = model.evaluate(x_test, y_test).scores["swsgp"]
    kept = ("error", "nll", "ece") if is_classes else ("rmse", "nll", "coverage")
    chosen = {key: model.settings_[key] for key in ("n_inducing", "n_neighbors", "n_landmarks", "kl_scale")}
    return {"seconds": seconds, **{key: scores[key] for key in kept}, **chosen}


def svgp(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray, is_classes: bool) -> dict:
    """GPyTorch's SVGP-1024: ARD Matérn-5/2, learned inducing inputs, full covariance, Adam at 0.01."""
    import gpytorch
    import torch

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self, z: torch.Tensor):
            q = gpytorch.variational.CholeskyVariationalDistribution(len(z))
            super().__init__(gpytorch.variational.VariationalStrategy(self, z, q, learn_inducing_locations=True))
            self.mean_module = gpytorch.means.ConstantMean()
            kernel = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=z.shape[1])
            self.covar_module = gpytorch.kernels.ScaleKernel(kernel)

        def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    centre, scale = x.mean(axis=0), np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)
    x, x_test = ((torch.tensor((part - centre) / scale, dtype=torch.float32, device=device)) for part in (x, x_test))
    target = torch.tensor(y, dtype=torch.float32, device=device)
    start = time.perf_counter()
    kinds = gpytorch.likelihoods
    likelihood = (kinds.BernoulliLikelihood() if is_classes else kinds.GaussianLikelihood()).to(device)
    model = Model(x[torch.randperm(len(x))[:1024]].clone()).to(device)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, len(x))
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    # Where rows repeat, three tries with a growing jitter are too few.
    with gpytorch.settings.cholesky_max_tries(6):
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(x), device=device).split(1024):
                optimiser.zero_grad()
                (-bound(model(x[rows]), target[rows])).backward()
                optimiser.step()
            if time.perf_counter() - start > MOST_SECONDS:
                break
    seconds = time.perf_counter() - start
    model.eval()
    likelihood.eval()
    with torch.no_grad(), gpytorch.settings.cholesky_max_tries(6):
        found = [likelihood(model(part)) for part in x_test.split(4096)]
        mean = torch.cat([part.mean for part in found]).cpu().numpy().astype(np.float64)
        variance = torch.cat([part.variance for part in found]).cpu().numpy().astype(np.float64)
    return {"seconds": seconds, **scores_of(mean, variance, y_test, is_classes)}


def vecchia(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray, is_classes: bool) -> dict | None:
    """GPBoost's Vecchia approximation with 20 neighbours, for numbers only."""
    if is_classes:
        return None
    import gpboost

    centre, scale = x.mean(axis=0), np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)
    x, x_test = (x - centre) / scale, (x_test - centre) / scale
    start = time.perf_counter()
    model = gpboost.GPModel(
        gp_coords=x,
        cov_function="matern_ard",
        cov_fct_shape=2.5,
        gp_approx="vecchia",
        num_neighbors=20,
        likelihood="gaussian",
    )
    model.fit(y=y)
    seconds = time.perf_counter() - start
    found = model.predict(gp_coords_pred=x_test, predict_var=True, predict_response=True)
    return {"seconds": seconds, **scores_of(found["mu"], found["var"], y_test, False)}


def scores_of(mean: np.ndarray, variance: np.ndarray, y: np.ndarray, is_classes: bool) -> dict:
    if is_classes:
        labels, p = y.astype(int), np.stack([1 - mean, mean], axis=1)
        scores = metrics.error_rate(labels, p), metrics.class_nll(labels, p), metrics.calibration_error(labels, p)
        return dict(zip(("error", "nll", "ece"), scores, strict=True))
    ends = (mean + sign * 1.959964 * np.sqrt(variance) for sign in (-1, 1))
    scores = metrics.rmse(y, mean), metrics.gaussian_nll(y, mean, variance), metrics.coverage(y, *ends)
    return dict(zip(("rmse", "nll", "coverage"), scores, strict=True))


SYSTEMS = {"swsgp": ours, "GPyTorch SVGP-1024": svgp, "GPBoost Vecchia-20": vecchia}


def table(runs: list[dict]) -> str:
    machines = sorted({r["machine"] for r in runs})
    lines = [
        "# Accuracy of the defaults",
        "",
        f"`make bench-accuracy`, swsgp {swsgp.__version__}: means over 90/10 splits. Targets are standardised; "
        "calibration is the coverage of 95% intervals, or the expected calibration error of classes.",
    ]
    for machine in machines:
        lines += [
            "",
            f"## {machine}",
            "",
            "| data | system | splits | NLL | asked | RMSE or error | asked | calibration | seconds to fit |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for name in SETS:
            for system in SYSTEMS:
                own = [r for r in runs if (r["data"], r["system"], r["machine"]) == (name, system, machine)]
                if not own:
                    continue
                size, calibration = ("rmse", "coverage") if "rmse" in own[0] else ("error", "ece")
                mean = {key: np.mean([r[key] for r in own]) for key in ("nll", size, calibration, "seconds")}
                nll, most = LIMITS[name]
                cells = (
                    *(name, system, len(own), f"{mean['nll']:.3f}", nll, f"{mean[size]:.3f}", most or "–"),
                    *(f"{mean[calibration]:.3f}", f"{mean['seconds']:.0f}"),
                )
                lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "results")
    asked = parser.parse_args()
    device = jax.devices()[0].device_kind
    machine = f"{len(os.sched_getaffinity(0))} CPU cores" + ("" if device == "cpu" else f", {device}")
    log = asked.out / "bench-accuracy.jsonl"
    runs = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {(r["data"], r["seed"], r["system"], r["machine"]) for r in runs}
    for seed in asked.seeds:
        for name in asked.sets:
            for system in asked.systems:
                # The split of airline is fixed.
                if (name, seed, system, machine) in done or (name == "airline" and seed):
                    continue
                x, y, x_test, y_test = split(name, seed)
                is_classes = len(np.unique(y)) == 2
                if not is_classes:
                    y, y_test = (y - y.mean()) / y.std(), (y_test - y.mean()) / y.std()
                found = SYSTEMS[system](x, y, x_test, y_test, is_classes)
                if found is None:
                    continue
                runs.append({"data": name, "seed": seed, "system": system, "machine": machine, **found})
                print(runs[-1], flush=True)
                log.write_text("".join(json.dumps(r) + "\n" for r in runs))
    (asked.out / "bench-accuracy.md").write_text(table(runs), encoding="utf-8")


if __name__ == "__main__":
    main()
