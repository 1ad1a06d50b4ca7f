"""What M and H do: the paper's figure on six data sets."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from swsgp.experiments.study import Case, Study, markdown, spread
from swsgp.experiments.systems import Fold, fold, main_score, score, train_fold, untrained
from swsgp.fit.settings import Settings
from swsgp.fit.together import train_together
from swsgp.gp.active import All, PerPoint
from swsgp.gp.covariances import Matern52
from swsgp.gp.model import SparseGP
from swsgp.gp.prediction import Predictor

TITLE = "The impact of M and H: SVGP-M, SVGP-16, SVGP-M-H and SWSGP-M-H"
N_FOLDS = 10
H = (4, 8, 16)
# Data sets that are trained together, values of M, folds that are run, and Adam's steps and rate; the second are the
# paper's.
LEVELS: dict[str, tuple[tuple[tuple[str, ...], ...], tuple[int, ...], int, int, float]] = {
    "quick": ((("powerplant", "kin8nm"), ("spam",)), (32, 128), 1, 3_000, 0.01),
    "full": (
        (("powerplant", "kin8nm", "protein"), ("eeg", "credit", "spam")),
        *((32, 64, 96, 128), N_FOLDS, 300_000, 0.001),
    ),
}
# Marker and colour of each curve, as in the paper.
STYLES = {
    "SVGP-M": ("^", "black"),
    "SVGP-16": ("v", "darkturquoise"),
    **{f"SVGP-M-{h}": (marker, "firebrick") for h, marker in zip(H, "so*", strict=True)},
    **{f"SWSGP-M-{h}": (marker, "seagreen") for h, marker in zip(H, "so*", strict=True)},
}


def run(study: Study) -> None:
    groups, sizes, n_folds, steps, rate = LEVELS[study.level]
    names = tuple(name for group in groups for name in group)
    shared = {"folds": n_folds, "steps": steps, "learning_rate": rate}
    cases = [
        {"data": ", ".join(group), "system": system, "m": m, **shared}
        for group in groups
        for system, m in [("SVGP", 16), *((s, m) for m in sizes for s in ("SVGP", *(f"SWSGP-{h}" for h in H)))]
    ]
    # Scores of each curve at each M, one for each fold.
    found: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    runs = study.runs(cases, compute)
    for r in runs:
        for name, systems in r["scores"].items():
            found |= {(name, system, r["case"]["m"]): scores for system, scores in systems.items()}
    head = ("data", "system", "M", "folds", "RMSE or error", "NLL", "NLL as in the paper")
    rows = [
        (name, system, m, len(own), _of(own, main_score(own[0])), _of(own, "nll"), _of(own, "nll_paper"))
        for (name, system, m), own in sorted(found.items())
    ]
    part = f"; {len(runs)} of {len(cases)} settings so far" if len(runs) < len(cases) else ""
    text = (
        f"{TITLE}. {steps:,} steps of 64 at a rate of {rate:g}"
        f"{', fewer and faster than the paper’s 300,000 at 0.001' if study.quick else ''}; {n_folds} of {N_FOLDS} "
        f"folds{part}. powerplant and kin8nm in units of the target, protein standardised. The paper shows this as a "
        "figure, without numbers.\n\n"
    )
    study.write_table(text + markdown(head, rows))
    study.write_figure(_figure(found, names, sizes))


def compute(case: Case) -> dict[str, Any]:
    """Scores by data set and system, one for each fold."""
    names, m = case["data"].split(", "), case["m"]
    folds = [(name, fold(name, number, N_FOLDS)) for name in names for number in range(case["folds"])]
    h = 0 if case["system"] == "SVGP" else int(case["system"].split("-")[1])
    active: All | PerPoint = PerPoint(h) if h else All()
    settings = Settings.paper(steps=case["steps"], learning_rate=case["learning_rate"], progress=True)
    scores: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in names}
    for name, data, model in _trained(folds, active, m, settings):
        trained = {f"SWSGP-M-{h}" if h else "SVGP-16" if m == 16 else "SVGP-M": model}
        if not h and m > 16:
            trained |= {f"SVGP-M-{h}": replace(model, active_prediction=PerPoint(h)) for h in H}
        for system, predicting in trained.items():
            scores[name].setdefault(system, []).append(score(data, Predictor(predicting)))
    return {"device": jax.devices()[0].device_kind, "scores": scores}


def _trained(
    folds: list[tuple[str, Fold]], active: All | PerPoint, m: int, settings: Settings
) -> Iterator[tuple[str, Fold, SparseGP]]:
    """A model for each fold."""
    if not _train_together():
        for name, data in folds:
            yield name, data, train_fold(data, untrained(data, active, m), settings).model
        return
    n_columns = max(data.x.shape[1] for _, data in folds)
    wide = [_widened(data, n_columns) for _, data in folds]
    start = [_model(own, data, active, m) for own, (_, data) in zip(wide, folds, strict=True)]
    models = train_together(start, [(own.x, own.y) for own in wide], settings)
    for (name, _), own, model in zip(folds, wide, models, strict=True):
        yield name, own, model


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


def _of(own: list[dict[str, float]], key: str) -> str:
    return spread([scores[key] for scores in own]) if key in own[0] else ""


def _figure(found: dict[Any, list[dict[str, float]]], names: tuple[str, ...], sizes: tuple[int, ...]) -> Figure:
    figure, panels = plt.subplots(2, len(names), figsize=(2.7 * len(names), 5.2), squeeze=False, sharex=True)
    for column, name in enumerate(names):
        for system, (marker, colour) in STYLES.items():
            places = [m for m in (16, *sizes) if (name, system, m) in found]
            own = [found[name, system, m] for m in places]
            if not own:
                continue
            for row, key in enumerate((main_score(own[0][0]), "nll")):
                means = [np.mean([s[key] for s in scores]) for scores in own]
                bars = [np.std([s[key] for s in scores]) for scores in own]
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
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure
