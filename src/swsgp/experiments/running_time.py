"""Running times of SVGP and SWSGP: the paper's table, and scores over training time."""

import time
from typing import Any

import jax
import numpy as np

from swsgp.experiments.study import Case, Study, beside, markdown, spread
from swsgp.experiments.systems import Curve, Fold, figure_of_curves, fold, sparse
from swsgp.gp.active import All, PerPoint
from swsgp.gp.model import SparseGP
from swsgp.gp.prediction import Predictor

TITLE = "Running times of SVGP-M and SWSGP-M-4 on eeg (M = 256) and on MNIST, odd against even (M = 1024)"
SIZES = {"eeg": 256, "mnist": 1024}
H, N_FOLDS = 4, 5
# Folds that are run, Adam's rate, and seconds of training for each data set, in a quick run on this machine and in a
# full one on the paper's.
LEVELS: dict[str, tuple[int, float, dict[str, float]]] = {
    "quick": (1, 0.01, {"eeg": 60.0, "mnist": 180.0}),
    "full": (5, 0.001, {"eeg": 5400.0, "mnist": 21600.0}),
}
# Milliseconds of a training step and of one prediction, error and NLL.
PAPER = {
    ("eeg", "SVGP"): (21.42, 1.43, 0.17, 0.34),
    ("eeg", "SWSGP"): (26.18, 0.56, 0.18, 0.36),
    ("mnist", "SVGP"): (516.0, 21.6, 0.02, 0.066),
    ("mnist", "SWSGP"): (233.0, 1.77, 0.016, 0.05),
}
# Steps that are timed, and rows that are predicted one by one.
N_TIMED, N_PREDICTED = 30, 200


def run(study: Study) -> None:
    n_folds, rate, budgets = LEVELS[study.level]
    cases = [
        {"data": name, "system": system, "m": m, "fold": number, "learning_rate": rate}
        | ({"time_budget": budgets[name]} if study.quick else {"steps": _steps_of_paper(name, system, budgets[name])})
        for number in range(n_folds)
        for name, m in SIZES.items()
        for system in ("SVGP", "SWSGP")
    ]
    runs = study.runs(cases, compute)
    rows = []
    for (name, system), paper in PAPER.items():
        own = [r for r in runs if (r["case"]["data"], r["case"]["system"]) == (name, system)]
        if not own:
            continue
        cells = [name, f"{system}-{SIZES[name]}" + (f"-{H}" if system == "SWSGP" else ""), len(own)]
        values = [[r[key] for r in own] for key in ("step_ms", "prediction_ms")]
        values += [[r["scores"][key] for r in own] for key in ("error", "nll")]
        for column, theirs in zip(values, paper, strict=True):
            cells += [spread(column), *beside(float(np.mean(column)), theirs)]
        rows.append(cells)
    head = ["data", "system", "folds"]
    for what in ("ms a step", "ms a prediction", "error", "NLL"):
        head += [what, "paper", "difference"]
    minutes = ", ".join(f"{name} for {seconds / 60:g} minutes" for name, seconds in budgets.items())
    how_long = (
        f"{minutes}, far less than the paper's 90 and 360"
        if study.quick
        else "as many steps as the paper's machine took in its 90 minutes and 6 hours"
    )
    text = (
        f"{TITLE}. Mini-batches of 64, inducing inputs that move, a full S; {how_long}, at a rate of {rate:g}. Times "
        f"are of {', '.join(sorted({r['device'] for r in runs}))}; the paper's are its own.\n\n"
    )
    study.write_table(text + markdown(head, rows))
    curves: dict[str, dict[str, Any]] = {}
    for r in runs:
        if r["case"]["fold"] == 0:
            curves.setdefault(r["case"]["data"], {})[r["case"]["system"]] = r["curve"]
    study.write_figure(figure_of_curves(curves))


def _steps_of_paper(name: str, system: str, seconds: float) -> int:
    return int(1e3 * seconds / PAPER[name, system][0])


def compute(case: Case) -> dict[str, Any]:
    data = fold(case["data"], case["fold"], N_FOLDS)
    active = PerPoint(H) if case["system"] == "SWSGP" else All()
    step_ms = 1e3 * min(_seconds_a_step(data, active, case["m"]) for _ in range(2))
    curve = Curve(data, first=1.0)
    options = {"steps": 10**7} | {
        name: case[name] for name in ("learning_rate", "steps", "time_budget") if name in case
    }
    trained = sparse(data, active, case["m"], placement="subset", callback=curve, **options)
    scores = curve.end(trained)
    prediction_ms = 1e3 * _seconds_a_prediction(trained.model, data)
    device = jax.devices()[0].device_kind
    times = {"device": device, "steps": trained.steps, "step_ms": step_ms, "prediction_ms": prediction_ms}
    return {**times, "scores": scores, "curve": curve.points}


def _seconds_a_step(data: Fold, active: All | PerPoint, m: int) -> float:
    """Of steps after the first few, which compile."""
    history = sparse(data, active, m, placement="subset", steps=N_TIMED).history
    first = next(report for report in history if report.step > 1)
    last = history[-1]
    return (last.seconds - first.seconds) / (last.step - first.step) if last.step > first.step else np.inf


def _seconds_a_prediction(model: SparseGP, data: Fold) -> float:
    predictor = Predictor(model)
    ask = predictor.probabilities if data.is_classes else predictor.moments
    rows = data.x_test[:N_PREDICTED]
    ask(rows[:1])
    started = time.perf_counter()
    for i in range(len(rows)):
        ask(rows[i : i + 1])
    return (time.perf_counter() - started) / len(rows)
