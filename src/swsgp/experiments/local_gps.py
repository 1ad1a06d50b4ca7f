"""SWSGP beside local GPs: the paper's table on powerplant and kin8nm."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from swsgp.baselines.local_gps import fit_local_gps
from swsgp.baselines.predictive import BaselinePredictor
from swsgp.experiments.study import Case, Study, markdown, spread
from swsgp.experiments.systems import (
    beside,
    figure_of_systems,
    fold,
    how_it_went,
    label,
    of_fold,
    score,
    sparse,
    title,
)
from swsgp.gp.active import PerPoint
from swsgp.gp.prediction import Predictor

TITLE = "SWSGP-64-4 and SWSGP-64-8 beside inductive and transductive local GPs"
DATA = ("powerplant", "kin8nm")
SYSTEMS = ("SWSGP-64-4", "SWSGP-64-8", "Inductive GPs", "Transductive GPs")
N_FOLDS = 10


class Level(NamedTuple):
    """Folds that are run; Adam's steps and rate for SWSGP; how many local GPs, of how many rows, and their steps."""

    folds: int
    steps: int
    learning_rate: float
    n_experts: int = 64
    n_points: int = 100
    expert_steps: int = 300


LEVELS = {"quick": Level(1, 20_000, 0.005), "full": Level(10, 300_000, 0.001)}
# RMSE, and NLL in the paper's convention.
PAPER = {
    ("powerplant", "SWSGP-64-4"): (4.27, 2.41),
    ("powerplant", "SWSGP-64-8"): (4.24, 2.40),
    ("powerplant", "Inductive GPs"): (9.93, 38.38),
    ("powerplant", "Transductive GPs"): (6.17, 18.78),
    ("kin8nm", "SWSGP-64-4"): (0.11, -1.27),
    ("kin8nm", "SWSGP-64-8"): (0.10, -1.38),
    ("kin8nm", "Inductive GPs"): (0.13, -0.40),
    ("kin8nm", "Transductive GPs"): (0.09, -0.65),
}


def run(study: Study) -> None:
    level = LEVELS[study.level]
    of_swsgp = {"steps": level.steps, "learning_rate": level.learning_rate}
    of_experts = {"n_experts": level.n_experts, "n_points": level.n_points, "steps": level.expert_steps}
    cases = [
        {**of_fold(name, number, N_FOLDS), "system": system} | (of_swsgp if system.startswith("SWSGP") else of_experts)
        for number in range(level.folds)
        for name in DATA
        for system in SYSTEMS
    ]
    runs = study.runs(cases, compute)
    rows = []
    panels: dict[str, dict[str, tuple[Sequence[float], float | None]]] = {}
    for name in DATA:
        for system in SYSTEMS:
            own = [r for r in runs if (r["case"]["data"], r["case"]["system"]) == (name, system)]
            if not own:
                continue
            case = own[0]["case"]
            values = {key: [r["scores"][key] for r in own] for key in ("rmse", "nll", "nll_paper", "coverage")}
            paper_rmse, paper_nll = PAPER[name, system]
            for what, key, paper in (("RMSE", "rmse", paper_rmse), ("NLL as in the paper", "nll_paper", paper_nll)):
                theirs = None if "stand_in" in case else paper
                panels.setdefault(f"{title(case)}, {what}", {})[system] = (values[key], theirs)
            rows.append(
                (
                    *(label(case), system, len(own), spread(values["rmse"])),
                    *beside(np.mean(values["rmse"]), paper_rmse, case),
                    *(spread(values["nll"]), spread(values["nll_paper"])),
                    *beside(np.mean(values["nll_paper"]), paper_nll, case),
                    f"{np.mean(values['coverage']):.3f}",
                )
            )
    head = ("data", "system", "folds", "RMSE", "paper", "difference", "NLL", "as in the paper", "paper", "difference")
    text = (
        f"{TITLE}. Units of the target. SWSGP: {level.steps:,} steps of 64 at a rate of {level.learning_rate:g}"
        f"{', fewer and faster than the paper’s 300,000 at 0.001' if study.quick else ''}. Local GPs: "
        f"{level.n_experts} of {level.n_points} rows, {level.expert_steps} steps of Adam on the likelihood of each. "
        f"{level.folds} of {N_FOLDS} folds. Coverage is that of 95% intervals.\n\n"
    )
    study.write_table(text + markdown((*head, "coverage"), rows))
    study.write_figure(figure_of_systems(panels))


def compute(case: Case) -> dict[str, Any]:
    data = fold(case["data"], case["fold"], case["n_folds"])
    if case["system"].startswith("SWSGP"):
        n_inducing, n_neighbors = (int(part) for part in case["system"].split("-")[1:])
        options = {name: case[name] for name in ("steps", "learning_rate")}
        model = sparse(data, PerPoint(n_neighbors), n_inducing, **options).model
        return {**how_it_went(model), "scores": score(data, Predictor(model))}
    kind = case["system"].split()[0].lower()
    options = {name: case[name] for name in ("n_experts", "n_points", "steps")}
    return {
        "scores": score(data, BaselinePredictor(fit_local_gps(data.x, data.y, kind=kind, progress=True, **options)))
    }
