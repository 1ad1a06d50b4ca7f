"""Posteriors of SVGP and SWSGP on a function of one column: the paper's figure."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from swsgp.experiments.study import Case, Study, markdown
from swsgp.fit.loop import train
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
# Adam's steps and rate.
LEVELS = {"quick": (3_000, 0.01), "full": (300_000, 0.001)}
GRID = np.linspace(-0.5, 10.5, 400)


def rows_1d() -> tuple[np.ndarray, np.ndarray]:
    """A wave with a gap, and a finer one on top at the right."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0.0, 10.0, 1000))
    x = x[(x < 4.2) | (x > 5.2)]
    return x, np.sin(2.0 * x) + 0.4 * np.sin(7.0 * x) * (x > 6) + 0.15 * rng.normal(size=len(x))


def run(study: Study) -> None:
    steps, rate = LEVELS[study.level]
    cases = [
        {"system": system, "learn_inducing": moves, "steps": steps, "learning_rate": rate}
        for moves in (True, False)
        for system in SYSTEMS
    ]
    runs = study.runs(cases, compute)
    exact = runs[0]
    rows = [
        (
            r["case"]["system"],
            "move" if r["case"]["learn_inducing"] else "stay",
            f"{np.sqrt(np.mean(np.square(np.subtract(r['mean'], exact['mean'])))):.3f}",
            f"{np.mean(np.abs(np.subtract(r['std'], exact['std']))):.3f}",
        )
        for r in runs
    ]
    text = (
        f"{TITLE}. Our own data, since the paper's are not named. {steps:,} steps of 64 at a rate of {rate:g}. "
        "Lengthscale 0.8, variance 1 and noise 0.0225 are given, the same for all, as in the paper. The last two "
        "columns: root mean square difference of the means, and mean difference of the standard deviations, from SVGP "
        "with inducing inputs that move, on a grid.\n\n"
    )
    head = ("system", "inducing inputs", "difference of means", "difference of deviations")
    study.write_table(text + markdown(head, rows))
    study.write_figure(_figure(runs))


def compute(case: Case) -> dict[str, Any]:
    x, y = rows_1d()
    active = SYSTEMS[case["system"]]
    covariance, likelihood = Matern52(0.8), Gaussian(0.0225)
    model = create(x[:, None], covariance, likelihood, active, n_inducing=M, covariance_form="full")
    options = {name: case[name] for name in ("steps", "learning_rate", "learn_inducing")}
    trained = train(model, x[:, None], y, Settings.paper(learn_hyperparameters=False, **options)).model
    mean, variance = Predictor(trained).moments(GRID[:, None])
    inducing = np.asarray(trained.inducing)[:, 0]
    return {"mean": mean.tolist(), "std": np.sqrt(variance).tolist(), "inducing": inducing.tolist()}


def _figure(runs: list[dict[str, Any]]) -> Figure:
    x, y = rows_1d()
    figure, panels = plt.subplots(2, 2, figsize=(11, 5), sharex=True, sharey=True)
    for panel, r in zip(panels.ravel(), runs, strict=True):
        mean, std = np.array(r["mean"]), np.array(r["std"])
        panel.scatter(x, y, s=3, color=GREY, alpha=0.4, linewidths=0)
        panel.fill_between(GRID, mean - 1.96 * std, mean + 1.96 * std, color=ORANGE, alpha=0.2, linewidth=0)
        panel.plot(GRID, mean, color=ORANGE)
        panel.plot(r["inducing"], np.full(len(r["inducing"]), -2.3), "|", color=BLUE, markersize=5)
        moves = "move" if r["case"]["learn_inducing"] else "stay"
        panel.set_title(f"{r['case']['system']}, inducing inputs {moves}", loc="left", fontsize=10)
    return figure
