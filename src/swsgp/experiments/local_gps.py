"""SWSGP beside local GPs: the paper's table on powerplant and kin8nm."""

from typing import Any

import numpy as np

from swsgp.baselines.local_gps import fit_local_gps
from swsgp.baselines.predictive import BaselinePredictor
from swsgp.experiments.study import Case, Study, beside, markdown, spread
from swsgp.experiments.systems import fold, score, sparse
from swsgp.gp.active import PerPoint
from swsgp.gp.prediction import Predictor

TITLE = "SWSGP-64-4 and SWSGP-64-8 beside inductive and transductive local GPs"
DATA = ("powerplant", "kin8nm")
SYSTEMS = ("SWSGP-64-4", "SWSGP-64-8", "Inductive GPs", "Transductive GPs")
N_FOLDS = 10
# How many folds are run, and Adam's steps and rate for SWSGP; the second are the paper's.
LEVELS = {"quick": (1, 20_000, 0.005), "full": (10, 300_000, 0.001)}
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
    n_folds, steps, rate = LEVELS[study.level]
    cases = [
        {"data": name, "system": system, "fold": number}
        | ({"steps": steps, "learning_rate": rate} if system.startswith("SWSGP") else {})
        for number in range(n_folds)
        for name in DATA
        for system in SYSTEMS
    ]
    runs = study.runs(cases, compute)
    rows = []
    for name in DATA:
        for system in SYSTEMS:
            own = [r["scores"] for r in runs if (r["case"]["data"], r["case"]["system"]) == (name, system)]
            if not own:
                continue
            values = {key: [scores[key] for scores in own] for key in ("rmse", "nll", "nll_paper")}
            paper_rmse, paper_nll = PAPER[name, system]
            rows.append(
                (
                    *(name, system, len(own), spread(values["rmse"])),
                    *beside(np.mean(values["rmse"]), paper_rmse),
                    *(spread(values["nll"]), spread(values["nll_paper"])),
                    *beside(np.mean(values["nll_paper"]), paper_nll),
                )
            )
    head = ("data", "system", "folds", "RMSE", "paper", "difference", "NLL", "as in the paper", "paper", "difference")
    text = (
        f"{TITLE}. Units of the target. SWSGP: {steps:,} steps of 64 at a rate of {rate:g}"
        f"{', fewer and faster than the paper’s 300,000 at 0.001' if study.quick else ''}; "
        f"{n_folds} of {N_FOLDS} folds.\n\n"
    )
    study.write_table(text + markdown(head, rows))


def compute(case: Case) -> dict[str, Any]:
    data = fold(case["data"], case["fold"], N_FOLDS)
    if case["system"].startswith("SWSGP"):
        n_inducing, n_neighbors = (int(part) for part in case["system"].split("-")[1:])
        options = {name: case[name] for name in ("steps", "learning_rate")}
        predictor: Any = Predictor(sparse(data, PerPoint(n_neighbors), n_inducing, **options).model)
    else:
        kind = case["system"].split()[0].lower()
        predictor = BaselinePredictor(fit_local_gps(data.x, data.y, kind=kind))
    return {"scores": score(data, predictor)}
