"""What "nearest" means: other definitions of the neighbours, and what they do to the scores."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from swsgp.experiments.study import Case, Study, markdown, spread
from swsgp.experiments.systems import figure_of_systems, fold, how_it_went, label, main_score, of_fold, score, sparse
from swsgp.gp.active import PerPoint
from swsgp.gp.covariances import RBF, Covariance, Linear, Matern52
from swsgp.gp.prediction import Predictor

TITLE = "Neighbours by the learned covariance, by the plain distance, and by other covariances"
DATA = ("powerplant", "kin8nm", "eeg")
N_FOLDS = 10
M, H = 64, 8


class Level(NamedTuple):
    """Folds that are run, and Adam's steps and rate."""

    folds: int
    steps: int
    learning_rate: float


LEVELS = {"quick": Level(1, 10_000, 0.005), "full": Level(5, 300_000, 0.001)}
# The paper's supplement, which has its own definitions, is not at hand: these are ours.
METRICS = {
    "learned Matérn-5/2": "the covariance of the model, with its learned lengthscales",
    "plain distance": "the distance of scaled inputs",
    "linear": "the largest inner product: not a distance at all",
    "first column only": "the distance along the first column",
}


def run(study: Study) -> None:
    level = LEVELS[study.level]
    shared = {"m": M, "h": H, "steps": level.steps, "learning_rate": level.learning_rate}
    cases = [
        {**of_fold(name, number, N_FOLDS), "metric": metric, **shared}
        for number in range(level.folds)
        for name in DATA
        for metric in METRICS
    ]
    runs = study.runs(cases, compute)
    rows = []
    panels: dict[str, dict[str, tuple[Sequence[float], float | None]]] = {}
    for name in DATA:
        for metric, words in METRICS.items():
            of_metric = [r for r in runs if (r["case"]["data"], r["case"]["metric"]) == (name, metric)]
            if not of_metric:
                continue
            own, shown = [r["scores"] for r in of_metric], label(of_metric[0]["case"])
            main = [s[main_score(s)] for s in own]
            nll = [s["nll"] for s in own]
            rows.append((shown, metric, words, len(own), spread(main), spread(nll)))
            panels.setdefault(f"{name}, {main_score(own[0])}", {})[metric] = (main, None)
            panels.setdefault(f"{name}, NLL", {})[metric] = (nll, None)
    text = (
        f"{TITLE}. SWSGP-{M}-{H}, {level.steps:,} steps of 64 at a rate of {level.learning_rate:g}; {level.folds} of "
        f"{N_FOLDS} folds. powerplant and kin8nm in units of the target.\n\n"
    )
    head = ("data", "nearest by", "which is", "folds", "RMSE or error", "NLL")
    study.write_table(text + markdown(head, rows))
    study.write_figure(figure_of_systems(panels))


def compute(case: Case) -> dict[str, Any]:
    data = fold(case["data"], case["fold"], case["n_folds"])
    options = {name: case[name] for name in ("steps", "learning_rate")}
    by = _nearest_by(case["metric"], data.x.shape[1])
    model = sparse(data, PerPoint(case["h"]), case["m"], nearest_by=by, **options).model
    return {**how_it_went(model), "scores": score(data, Predictor(model))}


def _nearest_by(metric: str, n_columns: int) -> Covariance | None:
    match metric:
        case "plain distance":
            return Matern52(np.ones(n_columns))
        case "linear":
            return Linear(np.ones(n_columns))
        case "first column only":
            return RBF(np.where(np.arange(n_columns) == 0, 1.0, 1e3))
    return None
