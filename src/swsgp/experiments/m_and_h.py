"""What M and H do: the paper's figure on six data sets."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from swsgp.errors import NumericalError
from swsgp.experiments.study import Case, Study, attempt, markdown, spread
from swsgp.experiments.systems import (
    Fold,
    fold,
    how_it_went,
    label,
    legend_below,
    main_score,
    of_fold,
    score,
    trained,
    untrained,
)
from swsgp.fit.settings import Settings
from swsgp.fit.together import train_together
from swsgp.gp.active import All, PerPoint
from swsgp.gp.covariances import Matern52
from swsgp.gp.model import SparseGP
from swsgp.gp.prediction import Predictor

TITLE = "The impact of M and H: SVGP-M, SVGP-16, SVGP-M-H and SWSGP-M-H"
N_FOLDS = 10
H = (4, 8, 16)


class Level(NamedTuple):
    """Groups of data sets that may train together, values of M, folds that are run, and Adam's steps and rate."""

    groups: tuple[tuple[str, ...], ...]
    sizes: tuple[int, ...]
    folds: int
    steps: int
    learning_rate: float


LEVELS = {
    "quick": Level((("powerplant", "kin8nm"), ("spam",)), (32, 128), 1, 3_000, 0.01),
    "full": Level(
        groups=(("powerplant", "kin8nm", "protein"), ("eeg", "credit", "spam")),
        sizes=(32, 64, 96, 128),
        folds=N_FOLDS,
        steps=300_000,
        learning_rate=0.001,
    ),
}
# Marker and colour of each curve.
STYLES = {
    "SVGP-M": ("^", "black"),
    "SVGP-16": ("v", "darkturquoise"),
    **{f"SVGP-M-{h}": (marker, "firebrick") for h, marker in zip(H, "s*P", strict=True)},
    **{f"SWSGP-M-{h}": (marker, "seagreen") for h, marker in zip(H, "s*P", strict=True)},
}
# Scores of each curve at each M, one for each fold.
Found = dict[tuple[str, str, int], list[dict[str, float]]]


def run(study: Study) -> None:
    level = LEVELS[study.level]
    shared = {"steps": level.steps, "learning_rate": level.learning_rate}
    systems = ("SVGP", *(f"SWSGP-{h}" for h in H))
    groups = [
        [
            {**of_fold(name, number, N_FOLDS), "system": system, "m": m, **shared}
            for name in group
            for number in range(level.folds)
        ]
        for group in level.groups
        for system, m in [("SVGP", 16), *((system, m) for m in level.sizes for system in systems)]
    ]
    runs = study.runs_together(groups if _train_together() else [[case] for group in groups for case in group], compute)
    found: Found = {}
    for r in runs:
        for system, scores in r["scores"].items():
            found.setdefault((label(r["case"]), system, r["case"]["m"]), []).append(scores)
    names = tuple(dict.fromkeys(name for name, _, _ in found))
    on = sorted({r["device"] for r in runs})
    text = (
        f"{TITLE}. {level.steps:,} steps of 64 at a rate of {level.learning_rate:g}"
        f"{', fewer and faster than the paper’s 300,000 at 0.001' if study.quick else ''}; {level.folds} of {N_FOLDS} "
        f"folds, on {' and '.join(on)}. powerplant and kin8nm in units of the target, protein standardised. The paper "
        "shows this as a figure, without numbers; its NLL of regression is ours less 0.4595.\n"
    )
    for title, key in (("RMSE or error", ""), ("NLL", "nll")):
        text += f"\n{title}, mean ± standard deviation over folds:\n\n" + _table(found, names, (16, *level.sizes), key)
    study.write_table(text)
    study.write_figure(_figure(found, names, level.sizes))


def compute(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Scores by system for each case, which are alike but for data set and fold."""
    first = cases[0]
    folds = [fold(case["data"], case["fold"], case["n_folds"]) for case in cases]
    h = 0 if first["system"] == "SVGP" else int(first["system"].split("-")[1])
    active: All | PerPoint = PerPoint(h) if h else All()
    settings = Settings.paper(steps=first["steps"], learning_rate=first["learning_rate"], progress=True)
    if len(cases) == 1:
        return [attempt(lambda: _alone(folds[0], untrained(folds[0], active, first["m"]), settings, h))]
    n_columns = max(data.x.shape[1] for data in folds)
    wide = [_widened(data, n_columns) for data in folds]
    start = [_model(own, data, active, first["m"]) for own, data in zip(wide, folds, strict=True)]
    outcome = attempt(lambda: {"models": train_together(start, [(own.x, own.y) for own in wide], settings)})
    if "failed" in outcome:
        return [outcome for _ in cases]
    return [attempt(partial(_scores, own, model, h)) for own, model in zip(wide, outcome["models"], strict=True)]


def _alone(data: Fold, start: SparseGP, settings: Settings, h: int) -> dict[str, Any]:
    return _scores(data, trained(start, data.x, data.y, settings).model, h)


def _scores(data: Fold, model: SparseGP | None, h: int) -> dict[str, Any]:
    """Of a model with H active inducing variables, or of SVGP, which predicts from its H nearest, too."""
    if model is None:
        raise NumericalError("training met values that are not finite, and gave up.")
    m = len(model.inducing)
    systems = {f"SWSGP-M-{h}" if h else "SVGP-16" if m == 16 else "SVGP-M": model}
    if not h and m > 16:
        systems |= {f"SVGP-M-{h}": replace(model, active_prediction=PerPoint(h)) for h in H}
    scores = {system: score(data, Predictor(predicting)) for system, predicting in systems.items()}
    return {**how_it_went(model), "scores": scores}


def _train_together() -> bool:
    """Whether all folds of all data sets train in one program, which fills a GPU; the cores of a CPU gain nothing."""
    return jax.default_backend() != "cpu"


def _widened(data: Fold, n_columns: int) -> Fold:
    """With columns of 0 added, which change no distance, so that data sets of any width train in one program."""
    x, x_test = (np.pad(x, ((0, 0), (0, n_columns - x.shape[1]))) for x in (data.x, data.x_test))
    return replace(data, x=x, x_test=x_test)


def _model(wide: Fold, data: Fold, active: All | PerPoint, m: int) -> SparseGP:
    """Untrained; lengthscales start as they would without the added columns."""
    lengthscale = np.full(wide.x.shape[1], np.sqrt(data.x.shape[1]))
    return untrained(wide, active, m, covariance=Matern52(lengthscale))


def _table(found: Found, names: tuple[str, ...], sizes: tuple[int, ...], key: str) -> str:
    """A row for each data set and system, a column for each M; without a key the score beside the NLL."""
    rows = []
    for name in names:
        for system in STYLES:
            own = [found.get((name, system, m), []) for m in sizes]
            if any(own):
                cells = [spread([s[key or main_score(s)] for s in scores]) if scores else "" for scores in own]
                rows.append((name, system, max(map(len, own)), *cells))
    return markdown(("data", "system", "folds", *(f"M = {m}" for m in sizes)), rows)


def _figure(found: Found, names: tuple[str, ...], sizes: tuple[int, ...]) -> Figure:
    figure, panels = plt.subplots(2, len(names), figsize=(2.7 * len(names), 5.2), squeeze=False, sharex=True)
    for column, name in enumerate(names):
        for system, (marker, colour) in STYLES.items():
            places = [m for m in (16, *sizes) if (name, system, m) in found]
            own = [found[name, system, m] for m in places]
            if not own:
                continue
            for row, key in enumerate((main_score(own[0][0]), "nll")):
                means = [np.mean([s[key] for s in scores]) for scores in own]
                bars = [np.std([s[key] for s in scores], ddof=min(1, len(scores) - 1)) for scores in own]
                if system == "SVGP-16":
                    panels[row, column].axhline(means[0], color=colour, linestyle=":", label=system)
                else:
                    panels[row, column].errorbar(
                        places, means, bars, marker=marker, color=colour, linestyle="-", linewidth=0.8, label=system
                    )
                panels[row, column].set_ylabel({"rmse": "RMSE", "error": "error", "nll": "NLL"}[key])
        panels[0, column].set_title(name, fontsize=10)
        panels[1, column].set_xlabel("M")
        panels[1, column].set_xticks(sizes)
    legend_below(figure, 4)
    return figure
