"""A huge number of inducing points: scores over training time, against SVGP with few."""

from typing import Any

import jax
import numpy as np

from swsgp.data.sets import set_or_stand_in
from swsgp.experiments.study import Case, Study, markdown
from swsgp.experiments.systems import Curve, figure_of_curves, fold, label, main_score, sparse
from swsgp.gp.active import All, PerPoint
from swsgp.gp.covariances import Linear, Matern32

TITLE = "SWSGP with 3,000 to 100,000 inducing points that stay and a diagonal S, against SVGP-128 and SVGP-512"
N_FOLDS = 10
# Data set: M of SWSGP, and H.
FULL: dict[str, tuple[tuple[int, ...], int]] = {
    "protein": ((5_000, 10_000), 16),
    "eeg": ((3_000, 5_000), 16),
    "wave": ((5_000, 10_000), 16),
    "query": ((5_000, 10_000), 16),
    "airline": ((100_000,), 100),
}
QUICK: dict[str, tuple[tuple[int, ...], int]] = {
    "protein": ((5_000,), 16),
    "eeg": ((3_000,), 16),
    "airline": ((20_000,), 32),
}
# What is run; how long each model is trained on airline and elsewhere, in seconds or, in the full run, in steps; and
# Adam's rate. The paper says how many steps it took on airline alone.
LEVELS: dict[str, tuple[dict[str, tuple[tuple[int, ...], int]], int, int, float]] = {
    "quick": (QUICK, 120, 60, 0.01),
    "full": (FULL, 1_000_000, 300_000, 0.001),
}
SVGP_SIZES = {"quick": (128,), "full": (128, 512)}
# Of SVGP in the full run: its steps take longer, and so many of them about as long as SWSGP's.
SVGP_STEPS = 100_000
# Rows of airline in a quick run.
QUICK_ROWS = 300_000
PAPER = {"airline": "error 0.21, NLL 0.48 (on the flights of 2008)"}


def run(study: Study) -> None:
    plan, on_airline, elsewhere, rate = LEVELS[study.level]
    cases = []
    for asked, (sizes, h) in plan.items():
        name = set_or_stand_in(asked)
        shared = {
            "time_budget" if study.quick else "steps": on_airline if name == "airline" else elsewhere,
            "learning_rate": rate,
            "max_rows": QUICK_ROWS if study.quick and name == "airline" else None,
        }
        cases += [{"data": name, "system": f"SWSGP-{m}-{h}", **shared} for m in sizes]
        steps = {} if study.quick else {"steps": SVGP_STEPS}
        cases += [{"data": name, "system": f"SVGP-{m}", **shared, **steps} for m in SVGP_SIZES[study.level]]
    runs = study.runs(cases, compute)
    rows = []
    for r in runs:
        scores, case = r["scores"], r["case"]
        base = f"{scores['base_error']:.3f} / {scores['base_entropy']:.3f}" if "base_error" in scores else ""
        auc = f"{scores['auc']:.3f}" if "auc" in scores else ""
        paper = PAPER.get(case["data"], "") if case["system"] == "SWSGP-100000-100" else ""
        cells = (
            f"{r['steps']:,}",
            f"{r['training_seconds']:.0f}",
            r["device"],
            f"{scores[main_score(scores)]:.3f}",
            f"{scores['nll']:.3f}",
            auc,
            base,
            paper,
        )
        rows.append((label(case["data"]), case["system"], *cells))
    unit = "seconds" if study.quick else "steps"
    text = (
        f"{TITLE}. Mini-batches of 64, a rate of {rate:g}, κ = 1; each model trained for {elsewhere:,} {unit}, "
        f"on airline for {on_airline:,}{f', with {QUICK_ROWS:,} of its rows' if study.quick else ''}"
        f"{'' if study.quick else f', SVGP for {SVGP_STEPS:,} everywhere'}; one of "
        f"{N_FOLDS} folds is the test. Airline: Matérn-3/2 plus linear. protein, wave and query standardised. In the "
        "column of the base rate: error and NLL of always predicting it.\n\n"
    )
    head = ("data", "system", "steps", "seconds", "on", "RMSE or error", "NLL", "AUC", "base rate", "paper")
    study.write_table(text + markdown(head, rows))
    curves: dict[str, dict[str, Any]] = {}
    several = len({r["device"] for r in runs}) > 1
    for r in runs:
        system = r["case"]["system"] + (f" ({r['device']})" if several else "")
        curves.setdefault(r["case"]["data"], {})[system] = r["curve"]
    study.write_figure(figure_of_curves(curves))


def compute(case: Case) -> dict[str, Any]:
    data = fold(case["data"], 0, N_FOLDS, case["max_rows"])
    kind, m, *h = case["system"].split("-")
    n_columns = data.x.shape[1]
    wide = np.full(n_columns, np.sqrt(n_columns))
    covariance = Matern32(wide) + Linear(np.full(n_columns, 0.1)) if case["data"] == "airline" else None
    curve = Curve(data, first=1.0)
    stays = kind == "SWSGP"
    trained = sparse(
        data,
        PerPoint(int(h[0])) if stays else All(),
        int(m),
        form="diag" if stays else "full",
        learn_inducing=not stays,
        placement="subset",
        covariance=covariance,
        callback=curve,
        **({"steps": 10**8} | {name: case[name] for name in ("learning_rate", "steps", "time_budget") if name in case}),
    )
    scores = curve.end(trained)
    seconds = curve.points[-1]["training_seconds"]
    device = jax.devices()[0].device_kind
    times = {"device": device, "steps": trained.steps, "training_seconds": seconds}
    return {**times, "scores": scores, "curve": curve.points}
