"""Posteriors of SVGP and SWSGP on a function of one column: the paper's figure."""

from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from swsgp.experiments.study import Case, Study, markdown
from swsgp.experiments.systems import how_it_went, trained
from swsgp.fit.settings import Settings
from swsgp.gp.active import Active, All, PerPoint
from swsgp.gp.covariances import Matern52
from swsgp.gp.likelihoods import Gaussian
from swsgp.gp.model import create
from swsgp.gp.prediction import Predictor
from swsgp.plots import BLUE, GREY, ORANGE

TITLE = "Posteriors of SVGP-128 and SWSGP-128-16, with inducing inputs that move and that stay"
M = 128
SYSTEMS: dict[str, Active] = {"SVGP-128": All(), "SWSGP-128-16": PerPoint(16)}


class Level(NamedTuple):
    """Adam's steps and rate."""

    steps: int
    learning_rate: float


LEVELS = {"quick": Level(3_000, 0.01), "full": Level(300_000, 0.001)}
GRID = np.linspace(-0.5, 10.5, 400)
# Where there are rows, where some are left out, and beyond all of them.
LEFT, GAP, RIGHT = 0.0, (4.2, 5.2), 10.0
IN_GAP = (GAP[0] < GRID) & (GAP[1] > GRID)
BEYOND = (GRID < LEFT) | (GRID > RIGHT)
REGIONS = {"at rows": ~IN_GAP & ~BEYOND, "in the gap": IN_GAP, "beyond": BEYOND}


def rows_1d() -> tuple[np.ndarray, np.ndarray]:
    """A wave with a gap, and a finer one on top at the right."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(LEFT, RIGHT, 1000))
    x = x[(x < GAP[0]) | (x > GAP[1])]
    return x, np.sin(2.0 * x) + 0.4 * np.sin(7.0 * x) * (x > 6) + 0.15 * rng.normal(size=len(x))


def run(study: Study) -> None:
    level = LEVELS[study.level]
    cases = [
        {"system": system, "learn_inducing": moves, "steps": level.steps, "learning_rate": level.learning_rate}
        for moves in (True, False)
        for system in SYSTEMS
    ]
    runs = study.runs(cases, compute)
    exact = runs[0]
    rows = []
    for r in runs:
        cells = [r["case"]["system"], "move" if r["case"]["learn_inducing"] else "stay"]
        mean, std = (np.subtract(r[key], exact[key]) for key in ("mean", "std"))
        cells += [f"{np.sqrt(np.mean(mean[region] ** 2)):.3f}" for region in REGIONS.values()]
        cells += [f"{np.sqrt(np.mean(std[region] ** 2)):.3f}" for region in REGIONS.values()]
        rows.append(cells)
    text = (
        f"{TITLE}. Our own data, since the paper's are not named: 0 to 10, without rows from {GAP[0]} to {GAP[1]}. "
        f"{level.steps:,} steps of 64 at a rate of {level.learning_rate:g}. Lengthscale 0.8, variance 1 and noise "
        "0.0225 are given, the same for all, as in the paper. Root mean square differences of the means and of the "
        f"standard deviations from those of {exact['case']['system']} with inducing inputs that move, on a grid: where "
        "there are rows, in the gap, and up to 0.5 beyond all rows.\n\n"
    )
    head = ["system", "inducing inputs", *(f"{what}, {where}" for what in ("mean", "std") for where in REGIONS)]
    study.write_table(text + markdown(head, rows))
    study.write_figure(_figure(runs))


def compute(case: Case) -> dict[str, Any]:
    x, y = rows_1d()
    active = SYSTEMS[case["system"]]
    covariance, likelihood = Matern52(0.8), Gaussian(0.0225)
    start = create(x[:, None], covariance, likelihood, active, n_inducing=M, covariance_form="full")
    options = {name: case[name] for name in ("steps", "learning_rate", "learn_inducing")}
    settings = Settings.paper(learn_hyperparameters=False, progress=True, **options)
    model = trained(start, x[:, None], y, settings).model
    mean, variance = Predictor(model).moments(GRID[:, None])
    inducing = np.asarray(model.inducing)[:, 0]
    curves = {"mean": mean.tolist(), "std": np.sqrt(variance).tolist(), "inducing": inducing.tolist()}
    return {**how_it_went(model), **curves}


def _figure(runs: list[dict[str, Any]]) -> Figure:
    x, y = rows_1d()
    figure, panels = plt.subplots(2, 2, figsize=(11, 5), sharex=True, sharey=True)
    for panel, r in zip(panels.ravel(), runs, strict=False):
        mean, std = np.array(r["mean"]), np.array(r["std"])
        panel.scatter(x, y, s=3, color=GREY, alpha=0.4, linewidths=0)
        panel.fill_between(GRID, mean - 1.96 * std, mean + 1.96 * std, color=ORANGE, alpha=0.2, linewidth=0)
        panel.plot(GRID, mean, color=ORANGE)
        panel.plot(r["inducing"], np.full(len(r["inducing"]), -2.3), "|", color=BLUE, markersize=5)
        moves = "move" if r["case"]["learn_inducing"] else "stay"
        panel.set_title(f"{r['case']['system']}, inducing inputs {moves}", loc="left", fontsize=10)
    # Inducing inputs that move may go far away.
    panels[0, 0].set_xlim(GRID[0] - 1, GRID[-1] + 1)
    return figure
