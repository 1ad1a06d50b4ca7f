"""On a GPU: a step, a search for neighbours, and airline at scale, with GPyTorch's SVGP in the same run.

    SWSGP_DATA=folder make bench-gpu

Adds each run as a line to `results/bench-gpu.jsonl`, and makes `results/bench-gpu.md` and `docs/airline.png` of them;
runs that are there already are not repeated. `--parts` chooses among steps, search and airline, `--sets` among the
tables, and `--out` names another folder for all of it.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from compare import device, gpytorch_model

import swsgp
from swsgp.experiments.systems import Curve, Fold, figure_of_curves, fold
from swsgp.fit.rows import reach
from swsgp.fit.step import begin, run_steps
from swsgp.gp.active import SearchInducing
from swsgp.gp.covariances import Linear, Matern12, Matern32
from swsgp.metrics import class_scores

SETS = ("airline", "airline_3m")
# Of a step: M, H and rows in a batch.
STEPS = (
    *((5_000, 16, 64), (100_000, 100, 64), (100_000, 100, 1024), (100_000, 100, 8192)),
    *((1_000_000, 100, 64), (1_000_000, 100, 8192)),
)
# Of airline at scale: M and H, and how they are trained.
SCALE = ((100_000, 100), (1_000_000, 32))
TRAINING = {"first_epochs": 1, "epochs": 8, "batch": 1024, "learning_rate": 0.01}
N_FOLDS = 10
# Seconds that GPyTorch's SVGP-1024 has on each table.
PEER_SECONDS = 30.0


def steps() -> Iterator[dict[str, Any]]:
    """Milliseconds of a step: per point, diagonal S, fixed Z, Matérn-3/2 + linear, Bernoulli, 8 columns."""
    rng = np.random.default_rng(0)
    n_rows = 200_000
    x, y = rng.normal(size=(n_rows, 8)).astype("float32"), rng.integers(0, 2, n_rows).astype("float32")
    settings = swsgp.Settings.paper(learn_inducing=False)
    for m, h, size in STEPS:
        z = rng.normal(size=(m, 8)).astype("float32")
        covariance = Matern32(np.full(8, 3.0)) + Linear(np.full(8, 0.1))
        model = swsgp.create(z, covariance, swsgp.Bernoulli(), swsgp.PerPoint(h), n_inducing=m, placement=z)
        state, fixed = begin(model, settings)
        n = max(50, 32_000 // size)
        neighbours = jnp.asarray(rng.integers(0, m, size=(n_rows, h)), jnp.int32)
        rows = jnp.asarray(rng.integers(0, n_rows, size=(n, size)), jnp.int32)
        pace = [jnp.asarray(part, jnp.float32) for part in (settings.rates(0, n), reach(settings, 1, n))]
        counts = jnp.asarray(n, jnp.int32), jnp.asarray(n_rows, jnp.float32), jnp.asarray(1.0, jnp.float32)
        data = (jnp.asarray(x), jnp.asarray(y), neighbours, rows)
        seconds = _best(lambda: run_steps(state, fixed, *data, *pace, *counts))  # noqa: B023
        yield {"system": f"swsgp M={m:,} H={h}", "batch": size, "ms": 1e3 * seconds / n}
    for strategy in ("VariationalStrategy", "LargeBatchVariationalStrategy"):
        for size in (64, 1024, 8192):
            step = peer(x, y, strategy)[0]
            n = 50
            seconds = _best(lambda: [step(size) for _ in range(n)])  # noqa: B023
            yield {"system": f"GPyTorch SVGP-1024, {strategy}", "batch": size, "ms": 1e3 * seconds / n}


def search() -> Iterator[dict[str, Any]]:
    """Seconds to find the neighbours of all training rows of airline."""
    x = np.asarray(fold("airline", 0, N_FOLDS).x, "float32")
    order = np.random.default_rng(0).permutation(len(x))
    near = Matern32(np.full(8, 2.8))
    for by, m, h in (
        (near, 100_000, 100),
        (near * Linear(np.full(8, 0.1)), 100_000, 100),
        (near, 1_000_000, 32),
    ):
        find = SearchInducing(by, x[order[:m]])
        find(x[:10_000], h)
        start = time.perf_counter()
        find(x, h)
        yield {
            "rows": len(x),
            "m": m,
            "h": h,
            "by": "distance" if by is near else "covariance",
            "seconds": time.perf_counter() - start,
        }


def ours(data: Fold, m: int, h: int) -> dict[str, Any]:
    """The bound, by Adam: Matérn-1/2, inducing inputs at rows drawn at random, κ = M/8H.

    One pass over the rows of the inducing inputs comes first, which brings lengthscales on their way sooner (see
    docs/method.md). Then the rate falls to 0 in some epochs of all rows.
    """
    n_columns, batch = data.x.shape[1], TRAINING["batch"]
    rows = np.random.default_rng(0).permutation(len(data.x))[:m]
    z, likelihood = data.x[rows], data.likelihood
    covariance = Matern12(np.full(n_columns, np.sqrt(n_columns)))
    options = {"n_inducing": m, "placement": z, "offset": np.zeros(1)}
    model = swsgp.create(z, covariance, likelihood, swsgp.PerPoint(h), **options)
    shared = {"batch_size": batch, "learning_rate": TRAINING["learning_rate"], "kl_scale": m / (8 * h)}
    first = swsgp.Settings(steps=TRAINING["first_epochs"] * m // batch, schedule="constant", **shared)
    start = swsgp.train(model, z, data.y[rows], first, n_data=len(data.x))
    settings = swsgp.Settings(steps=TRAINING["epochs"] * len(data.x) // batch, **shared)
    curve = Curve(data, first=5.0)
    scores = curve.end(swsgp.train(start.model, data.x, data.y, settings, callback=curve))
    for point in curve.points:
        point["step"] += start.steps
        point["training_seconds"] += start.seconds
    return {"scores": scores, "curve": curve.points}


def svgp(data: Fold) -> dict[str, Any]:
    """GPyTorch's SVGP-1024: ARD Matérn-5/2, learned inducing inputs, full S, batches of 1,024, Adam at 0.01."""
    step, predict = peer(data.x, data.y, "VariationalStrategy")
    points: list[dict[str, float]] = []
    spent, due = 0.0, 5.0
    while spent < PEER_SECONDS:
        start = time.perf_counter()
        for _ in range(50):
            step(1024)
        spent += time.perf_counter() - start
        if spent >= due or spent >= PEER_SECONDS:
            p = predict(data.x_test)
            found = class_scores(data.y_test, np.stack([1 - p, p], axis=1))
            points.append({"training_seconds": spent, **{name: found[name] for name in ("error", "nll", "auc")}})
            due = 1.5 * spent
    return {"scores": points[-1], "curve": points}


def peer(
    x: np.ndarray, y: np.ndarray, strategy: str
) -> tuple[Callable[[int], None], Callable[[np.ndarray], np.ndarray]]:
    """A step of so many rows of GPyTorch's SVGP-1024 for two classes, and its probabilities."""
    import gpytorch
    import torch

    torch.manual_seed(0)
    inputs, target = (torch.tensor(part, dtype=torch.float32, device=device()) for part in (x, y))
    likelihood = gpytorch.likelihoods.BernoulliLikelihood().to(device())
    start = inputs[torch.randperm(len(x))[:1024]].clone()
    q = gpytorch.variational.CholeskyVariationalDistribution(1024)
    kind = getattr(gpytorch.variational, strategy)
    model = gpytorch_model(lambda own: kind(own, start, q, learn_inducing_locations=True), x.shape[1])
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, len(x))
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)

    def step(size: int) -> None:
        rows = torch.randint(len(inputs), (size,), device=device())
        optimiser.zero_grad()
        with gpytorch.settings.cholesky_max_tries(6):
            (-bound(model(inputs[rows]), target[rows])).backward()
        optimiser.step()
        if device() == "cuda":
            torch.cuda.synchronize()

    def predict(x: np.ndarray) -> np.ndarray:
        model.eval()
        with torch.no_grad():
            parts = torch.tensor(x, dtype=torch.float32, device=device()).split(8192)
            found = torch.cat([likelihood(model(part)).mean for part in parts])
        model.train()
        return found.cpu().numpy().astype(np.float64)

    return step, predict


def _best(run: Callable[[], Any]) -> float:
    """Seconds, the least of three turns after one that compiles."""
    times = []
    for _ in range(4):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return min(times[1:])


def table(runs: list[dict[str, Any]]) -> str:
    device = runs[0]["device"]
    lines = [f"# On a GPU\n\n`make bench-gpu`: {device}, JAX {jax.__version__}, swsgp {swsgp.__version__}, float32."]
    own = [r for r in runs if r["part"] == "steps"]
    if own:
        lines += ["", "## One training step, random table of 8 columns", ""]
        lines += ["| system | rows in a batch | ms | rows a second |", "|---|---|---|---|"]
        lines += [
            f"| {r['system']} | {r['batch']:,} | {r['ms']:.3f} | {1e3 * r['batch'] / r['ms']:,.0f} |" for r in own
        ]
    own = [r for r in runs if r["part"] == "search"]
    if own:
        lines += ["", "## The nearest inducing inputs of every training row of airline, exact", ""]
        lines += ["| rows | M | neighbours | nearest by | seconds |", "|---|---|---|---|---|"]
        lines += [f"| {r['rows']:,} | {r['m']:,} | {r['h']} | {r['by']} | {r['seconds']:.1f} |" for r in own]
    own = [r for r in runs if r["part"] == "airline"]
    if own:
        lines += ["", "## Airline at scale: a tenth of the rows is the test", ""]
        lines += [
            f"SWSGP: {TRAINING['first_epochs']} epoch of the rows of the inducing inputs, then {TRAINING['epochs']} of "
            f"all rows, in batches of {TRAINING['batch']:,}; κ = M/8H. SVGP is stopped after {PEER_SECONDS:g} seconds.",
            "",
        ]
        lines += ["| data | system | seconds to train | error | NLL | AUC |", "|---|---|---|---|---|---|"]
        for r in own:
            scores = " | ".join(f"{r['scores'][name]:.3f}" for name in ("error", "nll", "auc"))
            lines.append(f"| {r['data']} | {r['system']} | {r['curve'][-1]['training_seconds']:.0f} | {scores} |")
    return "\n".join(lines) + "\n"


def airline(names: list[str]) -> Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    """Each case, and how to run it."""
    for name in names:
        for m, h in SCALE:
            case = {"data": name, "system": f"SWSGP, M={m:,}, H={h}", "kl_scale": m / (8 * h), **TRAINING}
            yield case, lambda m=m, h=h, name=name: ours(fold(name, 0, N_FOLDS), m, h)
        yield {"data": name, "system": "GPyTorch SVGP-1024"}, lambda name=name: svgp(fold(name, 0, N_FOLDS))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", nargs="+", default=["steps", "search", "airline"])
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent)
    asked = parser.parse_args()
    log = asked.out / "results" / "bench-gpu.jsonl"
    log.parent.mkdir(parents=True, exist_ok=True)
    (asked.out / "docs").mkdir(exist_ok=True)
    runs = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def keep(part: str, outcome: dict[str, Any]) -> None:
        runs.append({"part": part, "device": jax.devices()[0].device_kind, **outcome})
        print({name: value for name, value in runs[-1].items() if name != "curve"}, flush=True)
        log.write_text("".join(json.dumps(r) + "\n" for r in runs))

    for part, measure in (("steps", steps), ("search", search)):
        if part in asked.parts and not any(r["part"] == part for r in runs):
            for outcome in measure():
                keep(part, outcome)
    if "airline" in asked.parts:
        for case, run in airline(asked.sets):
            if not any(r.items() >= case.items() for r in runs):
                keep("airline", case | run())
    (asked.out / "results" / "bench-gpu.md").write_text(table(runs), encoding="utf-8")
    curves: dict[str, dict[str, Any]] = {}
    for r in runs:
        if r["part"] == "airline":
            curves.setdefault(r["data"], {})[r["system"]] = r["curve"]
    if curves:
        figure = figure_of_curves(curves)
        figure.set_layout_engine("constrained")
        figure.savefig(asked.out / "docs" / "airline.png", dpi=150)


if __name__ == "__main__":
    main()
