"""Joint predictions of SWSGP-U over batches of test points: the paper's figure on powerplant."""

from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from swsgp.baselines.exact import fit_full_gp
from swsgp.experiments.study import Case, Study, markdown
from swsgp.experiments.systems import Fold, fold, sparse
from swsgp.gp.active import All, Union
from swsgp.gp.prediction import Predictor
from swsgp.metrics import rmse

TITLE = "SWSGP-U-512M-128m with H from 4 to 64 over batches of test points, beside SVGP-512 and a full GP"
M, N_ACTIVE, N_EXACT, N_FOLDS = 512, 128, 2_000, 10
NEIGHBORS = (4, 8, 16, 32, 64)
BATCHES = (8, 16, 32, 64, 128)
# Adam's steps and rate, and how often test rows are grouped at random.
LEVELS = {"quick": (3_000, 0.01, 2), "full": (300_000, 0.001, 10)}


def run(study: Study) -> None:
    steps, rate, n_repeats = LEVELS[study.level]
    (result,) = study.runs(
        [{"data": "powerplant", "steps": steps, "learning_rate": rate, "repeats": n_repeats}], compute
    )
    rows = [
        (r["system"], r["batch"], *(f"{r[key]:.3f}" for key in ("rmse", "nll")), f"{r['covariance_error']:.2e}")
        for r in result["scores"]
    ]
    text = (
        f"{TITLE}. One fold, {steps:,} steps of 64 at a rate of {rate:g}"
        f"{', far fewer than the paper’s' if study.quick else ''}; {n_repeats} random groupings of the test rows. RMSE "
        "in megawatts; NLL of a row given its joint density with its batch; and the mean squared difference of the "
        "joint covariances of f (standardised) from those of a full GP on 2,000 rows.\n\n"
    )
    head = ("system", "test batch", "RMSE", "joint NLL a row", "mean squared error of covariances")
    study.write_table(text + markdown(head, rows))
    study.write_figure(_figure(result["scores"]))


def compute(case: Case) -> dict[str, Any]:
    data = fold(case["data"], 0, N_FOLDS)
    options = {name: case[name] for name in ("steps", "learning_rate")}
    union = sparse(data, Union(N_ACTIVE, 16), M, **options).model
    predictors: dict[str, Any] = {
        f"SWSGP-U, H = {h}": Predictor(replace(union, active_prediction=Union(N_ACTIVE, h))) for h in NEIGHBORS
    }
    predictors["SVGP-512"] = Predictor(sparse(data, All(), M, **options).model)
    rows = np.random.default_rng(0).permutation(len(data.x))[:N_EXACT]
    full = fit_full_gp(data.x[rows], data.y[rows])
    noises = {name: predictor.noise for name, predictor in predictors.items()} | {"full GP": full.likelihood.noise}
    predictors["full GP"] = full
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    for repeat in range(case["repeats"]):
        order = np.random.default_rng((1, repeat)).permutation(len(data.x_test))
        for batch in BATCHES:
            # The last batch is left out if it is not whole: one compiled program for all.
            for start in range(0, len(order) - batch + 1, batch):
                some = order[start : start + batch]
                exact = full.joint(data.x_test[some])[1][0]
                for name, predictor in predictors.items():
                    mean, cov = predictor.joint(data.x_test[some])
                    one = _joint_scores(data, some, mean[:, 0], cov[0], float(noises[name]), exact)
                    found.setdefault((name, batch), []).append(one)
    scores = []
    for (name, batch), values in found.items():
        squared, nll, error = np.mean(values, axis=0)
        scores.append(
            {"system": name, "batch": batch, "rmse": float(np.sqrt(squared)), "nll": nll, "covariance_error": error}
        )
    return {"scores": scores}


def _joint_scores(
    data: Fold, rows: np.ndarray, mean: np.ndarray, cov: np.ndarray, noise: float, exact: np.ndarray
) -> tuple[float, float, float]:
    """Mean squared error and joint NLL a row in units of the target, and the mean squared error of the covariances."""
    error = data.y_test[rows] - mean
    root = np.linalg.cholesky(cov + noise * np.eye(len(cov)))
    half = np.linalg.solve(root, error)
    nll = 0.5 * np.mean(half**2) + np.mean(np.log(np.diagonal(root))) + 0.5 * np.log(2 * np.pi) + np.log(data.unit)
    return data.unit**2 * rmse(data.y_test[rows], mean) ** 2, float(nll), float(np.mean((cov - exact) ** 2))


def _figure(scores: list[dict[str, Any]]) -> Figure:
    figure, panels = plt.subplots(1, 3, figsize=(12, 3.8))
    names = list(dict.fromkeys(r["system"] for r in scores))
    greens = plt.get_cmap("Greens")(np.linspace(0.35, 0.95, len(NEIGHBORS)))
    colours = dict(zip(names, [*greens, "black", "firebrick"], strict=True))
    for panel, key, words in zip(
        panels,
        ("rmse", "nll", "covariance_error"),
        ("RMSE", "joint NLL a row", "squared error of covariances"),
        strict=True,
    ):
        for name in names:
            own = [r for r in scores if r["system"] == name and not (key == "covariance_error" and name == "full GP")]
            panel.plot([r["batch"] for r in own], [r[key] for r in own], "s-", color=colours[name], label=name)
        panel.set_xlabel("rows of a test batch")
        panel.set_xscale("log", base=2)
        panel.set_title(words, loc="left", fontsize=10)
    panels[2].set_yscale("log")
    panels[0].legend(fontsize=7, frameon=False)
    return figure
