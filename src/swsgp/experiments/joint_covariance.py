"""Joint predictions of SWSGP-U over batches of test points: the paper's figure on powerplant."""

from dataclasses import replace
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from swsgp.baselines.exact import FullGP, fit_full_gp
from swsgp.experiments.study import Case, Study, markdown
from swsgp.experiments.systems import Fold, fold, how_it_went, of_fold, sparse
from swsgp.gp.active import All, Union
from swsgp.gp.model import SparseGP
from swsgp.gp.prediction import Predictor
from swsgp.metrics import rmse

TITLE = "SWSGP-U-512M-128m with H from 4 to 64 over batches of test points, beside SVGP-512 and a full GP"
M, N_ACTIVE, N_EXACT, N_FOLDS = 512, 128, 2_000, 10
NEIGHBORS = (4, 8, 16, 32, 64)
BATCHES = (8, 16, 32, 64, 128)
SYSTEMS = ("SWSGP-U", "SVGP-512", "full GP")
NOTHING = "no covariance at all"


class Level(NamedTuple):
    """Adam's steps and rate, and how often test rows are grouped at random."""

    steps: int
    learning_rate: float
    repeats: int


LEVELS = {"quick": Level(3_000, 0.01, 2), "full": Level(300_000, 0.001, 10)}


def run(study: Study) -> None:
    level = LEVELS[study.level]
    training = {"steps": level.steps, "learning_rate": level.learning_rate}
    sizes = {"m": M, "n_active": N_ACTIVE, "rows": N_EXACT, "neighbors": NEIGHBORS, "batches": BATCHES}
    cases = [
        {**of_fold("powerplant", 0, N_FOLDS), "system": system, **sizes, "repeats": level.repeats}
        | (training if system != "full GP" else {})
        for system in SYSTEMS
    ]
    scores = [one for r in study.runs(cases, compute) for one in r["scores"]]
    rows = [
        (
            *(r["system"], r["batch"]),
            *(f"{r[key]:.3f}" if key in r else "" for key in ("rmse", "nll")),
            f"{r['covariance_error']:.2e}",
        )
        for r in sorted(scores, key=lambda r: r["batch"])
    ]
    text = (
        f"{TITLE}. One fold, {level.steps:,} steps of 64 at a rate of {level.learning_rate:g}"
        f"{', far fewer than the paper’s' if study.quick else ''}; {level.repeats} random groupings of the test rows. "
        "RMSE in megawatts; NLL of a row given its joint density with its batch; and the mean squared difference of "
        f"the joint covariances of f (standardised) from those of a full GP on {N_EXACT:,} rows, as in the paper; the "
        "others have 8,600. In the last line of each batch: that of covariances of 0.\n\n"
    )
    head = ("system", "test batch", "RMSE", "joint NLL a row", "mean squared error of covariances")
    study.write_table(text + markdown(head, rows))
    study.write_figure(_figure(scores))


def compute(case: Case) -> dict[str, Any]:
    data = fold(case["data"], case["fold"], case["n_folds"])
    full = _full_gp(data)
    predictors, model = _predictors(case, data, full)
    found: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for repeat in range(case["repeats"]):
        order = np.random.default_rng((1, repeat)).permutation(len(data.x_test))
        for batch in BATCHES:
            # The last batch is left out if it is not whole: one compiled program for all.
            for start in range(0, len(order) - batch + 1, batch):
                some = order[start : start + batch]
                exact = full.joint(data.x_test[some])[1][0]
                for name, predictor in predictors.items():
                    mean, cov = predictor.joint(data.x_test[some])
                    one = _joint_scores(data, some, mean[:, 0], cov[0], _noise(predictor), exact)
                    found.setdefault((name, batch), []).append(one)
                if case["system"] == "full GP":
                    found.setdefault((NOTHING, batch), []).append((float(np.mean(exact**2)),))
    scores: list[dict[str, Any]] = []
    for (name, batch), values in found.items():
        means = dict(zip(("covariance_error", "nll", "squared"), np.mean(values, axis=0).tolist(), strict=False))
        if "squared" in means:
            means["rmse"] = float(np.sqrt(means.pop("squared")))
        scores.append({"system": name, "batch": batch, **means})
    return {**(how_it_went(model) if model is not None else {}), "scores": scores}


def _predictors(case: Case, data: Fold, full: FullGP) -> tuple[dict[str, Any], SparseGP | None]:
    """What predicts, by name, and the model that was trained for it."""
    if case["system"] == "full GP":
        return {"full GP": full}, None
    options = {name: case[name] for name in ("steps", "learning_rate")}
    if case["system"] == "SVGP-512":
        model = sparse(data, All(), M, **options).model
        return {"SVGP-512": Predictor(model)}, model
    model = sparse(data, Union(N_ACTIVE, NEIGHBORS[0]), M, **options).model
    actives = {f"SWSGP-U, H = {h}": Union(N_ACTIVE, h) for h in NEIGHBORS}
    return {name: Predictor(replace(model, active_prediction=active)) for name, active in actives.items()}, model


def _full_gp(data: Fold) -> FullGP:
    rows = np.random.default_rng(0).permutation(len(data.x))[:N_EXACT]
    return fit_full_gp(data.x[rows], data.y[rows])


def _noise(predictor: Predictor | FullGP) -> float:
    return float(predictor.noise if isinstance(predictor, Predictor) else predictor.likelihood.noise)


def _joint_scores(
    data: Fold, rows: np.ndarray, mean: np.ndarray, cov: np.ndarray, noise: float, exact: np.ndarray
) -> tuple[float, float, float]:
    """The mean squared error of the covariances; joint NLL a row and mean squared error in units of the target."""
    error = data.y_test[rows] - mean
    root = np.linalg.cholesky(cov + noise * np.eye(len(cov)))
    half = np.linalg.solve(root, error)
    nll = 0.5 * np.mean(half**2) + np.mean(np.log(np.diagonal(root))) + 0.5 * np.log(2 * np.pi) + np.log(data.unit)
    return float(np.mean((cov - exact) ** 2)), float(nll), data.unit**2 * rmse(data.y_test[rows], mean) ** 2


def _figure(scores: list[dict[str, Any]]) -> Figure:
    figure, panels = plt.subplots(1, 3, figsize=(12, 3.8))
    greens = plt.get_cmap("Greens")(np.linspace(0.35, 0.95, len(NEIGHBORS)))
    names = (*(f"SWSGP-U, H = {h}" for h in NEIGHBORS), *SYSTEMS[1:], NOTHING)
    colours = dict(zip(names, [*greens, "black", "firebrick", "grey"], strict=True))
    words = {"rmse": "RMSE", "nll": "joint NLL a row", "covariance_error": "squared error of covariances"}
    for panel, (key, title) in zip(panels, words.items(), strict=True):
        for name in names:
            own = [r for r in scores if r["system"] == name and key in r]
            if own and not (key == "covariance_error" and name == "full GP"):
                panel.plot([r["batch"] for r in own], [r[key] for r in own], "s-", color=colours[name], label=name)
        panel.set_xlabel("rows of a test batch")
        panel.set_xscale("log", base=2)
        panel.set_title(title, loc="left", fontsize=10)
    panels[2].set_yscale("log")
    panels[0].legend(fontsize=7, frameon=False)
    panels[2].legend(fontsize=7, frameon=False)
    return figure
