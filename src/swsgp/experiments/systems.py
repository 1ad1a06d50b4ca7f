"""Data, models and scores of the experiments, the same for all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from swsgp.baselines.predictive import BaselinePredictor
from swsgp.data.scaling import Scaling
from swsgp.data.sets import data_folder, digest_of_set, load_set, set_or_stand_in, what_stands_in
from swsgp.errors import NumericalError, SwsgpError
from swsgp.experiments.study import SEED, Case
from swsgp.fit.loop import Trained, train
from swsgp.fit.settings import Settings
from swsgp.fit.stopping import Report
from swsgp.gp.active import Active
from swsgp.gp.covariances import Covariance, Matern52
from swsgp.gp.likelihoods import Bernoulli, Gaussian, Likelihood
from swsgp.gp.model import JITTER, SparseGP, create
from swsgp.gp.prediction import Predictor
from swsgp.metrics import PAPER_SHIFT, class_scores, coverage, rmse
from swsgp.plots import BLUE, ORANGE, plain_ticks

# Sets whose scores the paper gives in the units of the target; the others are standardised.
_IN_UNITS = ("powerplant", "kin8nm")


@dataclass(frozen=True)
class Fold:
    """Scaled rows to train on and to test with. `unit` is one unit of the scaled target in the units of the scores."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    is_classes: bool
    unit: float

    @property
    def likelihood(self) -> Likelihood:
        return Bernoulli() if self.is_classes else Gaussian(0.1)


def fold(name: str, number: int, n_folds: int, max_rows: int | None = None) -> Fold:
    """One of `n_folds` folds of a data set by name, the same for every system; scaled by its training rows."""
    data = load_set(name)
    order = np.random.default_rng(SEED).permutation(len(data.x))[:max_rows]
    test = order[number::n_folds]
    rows = np.setdiff1d(order, test)
    y = data.y % 2 if name == "mnist" else data.y
    is_classes = len(np.unique(y)) == 2
    inputs = Scaling(np.zeros(1), np.full(1, 255.0)) if name == "mnist" else Scaling.of(data.x[rows])
    centre, scale = (0.0, 1.0) if is_classes else (y[rows].mean(), y[rows].std())
    target = Scaling(np.asarray(centre), np.asarray(scale))
    return Fold(
        inputs.apply(data.x[rows]),
        target.apply(y[rows]),
        inputs.apply(data.x[test]),
        target.apply(y[test]),
        is_classes,
        float(target.scale) if name in _IN_UNITS else 1.0,
    )


def of_fold(asked: str, number: int, n_folds: int) -> Case:
    """The part of a case that says on which data it is: a set of the paper, or what stands for it, its file, a fold."""
    name = set_or_stand_in(asked)
    return {"data": name, "fold": number, "n_folds": n_folds, **_file_of(name, data_folder())}


@cache
def _file_of(name: str, _: Path) -> Case:
    """Once for each: what could not be fetched is not asked for again."""
    try:
        found, instead = {"sha256": digest_of_set(name)}, what_stands_in(name)
        return found if instead is None else found | {"stand_in": instead}
    except SwsgpError as error:
        return {"missing": str(error)}


def label(case: Case) -> str:
    """A data set's name, and that it is not the paper's where it is not."""
    return f"{case['data']} (stand-in: {case['stand_in']})" if "stand_in" in case else str(case["data"])


def title(case: Case) -> str:
    """The same in a figure."""
    return case["data"] + (" (stand-in)" if "stand_in" in case else "")


def beside(ours: float, paper: float, case: Case, digits: int = 3) -> tuple[str, str]:
    """The paper's number, and how much ours is above it, if it is of the same data."""
    return f"{paper:g}", "" if "stand_in" in case else f"{ours - paper:+.{digits}f}"


def untrained(
    data: Fold,
    active: Active,
    n_inducing: int,
    *,
    form: str = "full",
    covariance: Covariance | None = None,
    placement: str = "kmeans",
    **options: Any,
) -> SparseGP:
    """A model of the engine for a fold, as the paper's where nothing else is said."""
    n_columns = data.x.shape[1]
    covariance = Matern52(np.full(n_columns, np.sqrt(n_columns))) if covariance is None else covariance
    form_and_place: dict[str, Any] = {"covariance_form": form, "placement": placement}
    return create(data.x, covariance, data.likelihood, active, n_inducing=n_inducing, **form_and_place, **options)


def sparse(
    data: Fold,
    active: Active,
    n_inducing: int,
    *,
    form: str = "full",
    predict_with: Active | None = None,
    covariance: Covariance | None = None,
    nearest_by: Covariance | None = None,
    placement: str = "kmeans",
    callback: Callable[[Report, SparseGP], bool | None] | None = None,
    **settings: Any,
) -> Trained:
    """Train a model of the engine; the settings are the paper's where not given."""
    options: dict[str, Any] = {"active_prediction": predict_with, "nearest_by": nearest_by, "placement": placement}
    model = untrained(data, active, n_inducing, form=form, covariance=covariance, **options)
    return trained(model, data.x, data.y, Settings.paper(progress=True, **settings), callback)


def trained(
    model: SparseGP,
    x: np.ndarray,
    y: np.ndarray,
    settings: Settings,
    callback: Callable[[Report, SparseGP], bool | None] | None = None,
) -> Trained:
    """Train a model to the end, or not at all."""
    found = train(model, x, y, settings, callback=callback)
    if found.reason == "interrupted":
        raise KeyboardInterrupt
    if found.reason == "not finite":
        raise NumericalError(f"training met values that are not finite after {found.steps:,} steps, and gave up.")
    return found


def how_it_went(model: SparseGP) -> dict[str, bool]:
    """What is to be told of a training that did not go straight on; see `swsgp.fit.loop`."""
    return {"met_not_finite": True} if float(model.jitter) > 1.01 * JITTER[model.precision] else {}


def score(data: Fold, predictor: Predictor | BaselinePredictor) -> dict[str, float]:
    """RMSE and NLL, or error and NLL, on the test rows; the NLL is that of the observations in their units."""
    if data.is_classes:
        probabilities, log_p = predictor.assess_classes(data.x_test, data.y_test)
        _check_finite(probabilities, log_p)
        found = class_scores(data.y_test, probabilities / probabilities.sum(axis=1, keepdims=True))
        kept = {name: found[name] for name in ("error", "auc", "base_error", "base_entropy")}
        return kept | {"nll": float(-np.mean(log_p))}
    mean, _, lower, upper, _, log_p = predictor.assess_numbers(data.x_test, data.y_test)
    _check_finite(mean, lower, upper, log_p)
    nll = float(np.log(data.unit) - np.mean(log_p))
    return {
        "rmse": data.unit * rmse(data.y_test, mean),
        "nll": nll,
        "nll_paper": nll - PAPER_SHIFT,
        "coverage": coverage(data.y_test, lower, upper),
    }


def _check_finite(*predicted: np.ndarray) -> None:
    if not all(np.isfinite(part).all() for part in predicted):
        raise NumericalError("the model predicts values that are not finite.")


def main_score(scores: dict[str, float]) -> str:
    """The name of the score that stands beside the NLL."""
    return "rmse" if "rmse" in scores else "error"


class Curve:
    """A callback of training that scores the model on the test rows now and then, less and less often."""

    def __init__(self, data: Fold, first: float):
        self.points: list[dict[str, float]] = []
        self._data, self._next = data, first

    def __call__(self, report: Report, model: SparseGP) -> None:
        if report.seconds >= self._next:
            self._add(report.step, report.seconds, model)
            self._next = 1.5 * report.seconds

    def end(self, trained: Trained) -> dict[str, float]:
        """The scores at the end."""
        return self._add(trained.steps, trained.seconds, trained.model)

    def _add(self, step: int, seconds: float, model: SparseGP) -> dict[str, float]:
        scores = score(self._data, Predictor(model))
        self.points.append({"step": float(step), "training_seconds": seconds, **scores})
        return scores


def figure_of_systems(panels: dict[str, dict[str, tuple[Sequence[float], float | None]]]) -> Figure:
    """A panel for each score with a row for each system: ours with the spread over folds, and the paper's."""
    n_rows = max(map(len, panels.values()))
    figure, axes = plt.subplots(1, len(panels), figsize=(3.2 * len(panels), 1.6 + 0.32 * n_rows), squeeze=False)
    for axis, (title, systems) in zip(axes[0], panels.items(), strict=True):
        for row, (ours, paper) in enumerate(systems.values()):
            bar = np.std(ours, ddof=1) if len(ours) > 1 else None
            axis.errorbar(np.mean(ours), row, xerr=bar, fmt="o", color=ORANGE, label="ours")
            if paper is not None:
                axis.plot(paper, row, "x", color=BLUE, label="paper")
        axis.set_yticks(range(len(systems)), systems)
        axis.set_ylim(len(systems) - 0.5, -0.5)
        axis.set_title(title.replace(", ", "\n"), fontsize=10)
    # Scores far apart, as some of the paper's are, leave the others in one place.
    legend_below(figure, 2)
    return figure


def legend_below(figure: Figure, n_columns: int) -> None:
    """One legend for all panels."""
    found: dict[str, Any] = {}
    for axis in figure.axes:
        handles, labels = axis.get_legend_handles_labels()
        found = dict(zip(labels, handles, strict=True)) | found
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=n_columns, fontsize=8)


def figure_of_curves(curves: dict[str, dict[str, list[dict[str, float]]]]) -> Figure:
    """Scores over training time: data sets in columns, a curve for each system.

    Where a curve has the first step, which compiles, the time is that after it.
    """
    figure, panels = plt.subplots(2, len(curves), figsize=(3.6 * len(curves), 5.4), squeeze=False, sharex="col")
    for column, (name, systems) in enumerate(curves.items()):
        for system, points in systems.items():
            compiled = points[0]["training_seconds"] if points[0].get("step") == 1 and len(points) > 1 else 0.0
            points = [point for point in points if point["training_seconds"] > compiled]
            minutes = [(point["training_seconds"] - compiled) / 60 for point in points]
            for row, key in enumerate((main_score(points[0]), "nll")):
                panels[row, column].plot(minutes, [point[key] for point in points], marker=".", label=system)
                panels[row, column].set_ylabel({"rmse": "RMSE", "error": "error", "nll": "NLL"}[key])
        panels[0, column].set_title(name, fontsize=10)
        panels[1, column].set_xlabel("minutes of training")
        panels[1, column].set_xscale("log")
        plain_ticks(panels[1, column].xaxis)
        # Below the panels: curves may be anywhere in them.
        panels[1, column].legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.22))
    return figure
