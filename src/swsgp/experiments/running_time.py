"""Running times of SVGP and SWSGP: the paper's table, and scores over training time."""

import time
from typing import Any, NamedTuple

import numpy as np

from swsgp.experiments.study import Case, Study, markdown, spread
from swsgp.experiments.systems import (
    Curve,
    Fold,
    beside,
    figure_of_curves,
    fold,
    how_it_went,
    label,
    of_fold,
    sparse,
    title,
)
from swsgp.fit.loop import Trained
from swsgp.gp.active import All, PerPoint
from swsgp.gp.model import SparseGP
from swsgp.gp.prediction import Predictor

TITLE = "Running times of SVGP-M and SWSGP-M-4 on eeg (M = 256) and on MNIST, odd against even (M = 1024)"
SIZES = {"eeg": 256, "mnist": 1024}
H, N_FOLDS = 4, 5


class Level(NamedTuple):
    """Folds that are run, Adam's rate, and seconds of training: on this machine, or, in a full run, on the paper's."""

    folds: int
    learning_rate: float
    seconds: dict[str, float]


LEVELS = {
    "quick": Level(1, 0.01, {"eeg": 60.0, "mnist": 180.0}),
    "full": Level(5, 0.001, {"eeg": 5400.0, "mnist": 21600.0}),
}
# Milliseconds of a training step and of one prediction, error and NLL.
PAPER = {
    ("eeg", "SVGP"): (21.42, 1.43, 0.17, 0.34),
    ("eeg", "SWSGP"): (26.18, 0.56, 0.18, 0.36),
    ("mnist", "SVGP"): (516.0, 21.6, 0.02, 0.066),
    ("mnist", "SWSGP"): (233.0, 1.77, 0.016, 0.05),
}
# Rows that are predicted one by one.
N_PREDICTED = 200


def run(study: Study) -> None:
    level = LEVELS[study.level]
    cases = [
        of_fold(name, number, N_FOLDS)
        | {"system": system, "m": m, "learning_rate": level.learning_rate}
        | ({"h": H} if system == "SWSGP" else {})
        | (
            {"time_budget": level.seconds[name]}
            if study.quick
            else {"steps": _steps_of_paper(name, system, level.seconds[name])}
        )
        for number in range(level.folds)
        for name, m in SIZES.items()
        for system in ("SVGP", "SWSGP")
    ]
    runs = study.runs(cases, compute)
    devices = sorted({r["device"] for r in runs})
    rows = []
    for (name, system), paper in PAPER.items():
        for device in devices:
            own = [r for r in runs if (r["case"]["data"], r["case"]["system"], r["device"]) == (name, system, device)]
            if not own:
                continue
            case = own[0]["case"]
            cells = [label(case), f"{system}-{SIZES[name]}" + (f"-{H}" if system == "SWSGP" else ""), device, len(own)]
            for key, theirs in zip(("step_ms", "prediction_ms"), paper, strict=False):
                ours = [r[key] for r in own]
                cells += [spread(ours), f"{theirs:g}", f"{theirs / np.mean(ours):.1f}"]
            for key, theirs in zip(("error", "nll"), paper[2:], strict=True):
                ours = [r["scores"][key] for r in own]
                cells += [spread(ours), *beside(float(np.mean(ours)), theirs, case)]
            rows.append(cells)
    head = ["data", "system", "on", "folds"]
    for what in ("ms a step", "ms a prediction"):
        head += [what, "paper", "times faster"]
    for what in ("error", "NLL"):
        head += [what, "paper", "difference"]
    minutes = ", ".join(f"{name} for {seconds / 60:g} minutes" for name, seconds in level.seconds.items())
    how_long = (
        f"{minutes}, far less than the paper's 90 and 360"
        if study.quick
        else "as many steps as the paper's machine took in its 90 minutes and 6 hours"
    )
    text = (
        f"{TITLE}. Mini-batches of 64, inducing inputs that move, a full S; {how_long}, at a rate of "
        f"{level.learning_rate:g}. A step is the mean of all but the first, which compiles. The paper's times are "
        "those of its own machine.\n\n"
    )
    study.write_table(text + markdown(head, rows))
    curves: dict[str, dict[str, Any]] = {}
    for r in runs:
        if r["case"]["fold"] == 0:
            curves.setdefault(title(r["case"]), {})[r["case"]["system"]] = r["curve"]
    study.write_figure(figure_of_curves(curves))


def _steps_of_paper(name: str, system: str, seconds: float) -> int:
    return int(1e3 * seconds / PAPER[name, system][0])


def compute(case: Case) -> dict[str, Any]:
    data = fold(case["data"], case["fold"], case["n_folds"])
    active = PerPoint(H) if case["system"] == "SWSGP" else All()
    curve = Curve(data, first=1.0)
    options = {"steps": 10**7} | {
        name: case[name] for name in ("learning_rate", "steps", "time_budget") if name in case
    }
    trained = sparse(data, active, case["m"], placement="subset", callback=curve, **options)
    times = {"step_ms": _milliseconds_a_step(trained), "prediction_ms": _milliseconds_a_prediction(trained.model, data)}
    scores = curve.end(trained)
    return {"steps": trained.steps, **times, **how_it_went(trained.model), "scores": scores, "curve": curve.points}


def _milliseconds_a_step(trained: Trained) -> float:
    """Of steps after the first, which compiles, if there were others."""
    first, last = trained.history[0], trained.history[-1]
    if last.step == first.step:
        return 1e3 * last.seconds / last.step
    return 1e3 * (last.seconds - first.seconds) / (last.step - first.step)


def _milliseconds_a_prediction(model: SparseGP, data: Fold) -> float:
    predictor = Predictor(model)
    ask = predictor.probabilities if data.is_classes else predictor.moments
    rows = data.x_test[:N_PREDICTED]
    ask(rows[:1])
    started = time.perf_counter()
    for i in range(len(rows)):
        ask(rows[i : i + 1])
    return 1e3 * (time.perf_counter() - started) / len(rows)
