"""A huge number of inducing points: scores over training time, against SVGP with few."""

from typing import Any, NamedTuple

import numpy as np

from swsgp.experiments.study import Case, Study, markdown
from swsgp.experiments.systems import (
    Curve,
    figure_of_curves,
    fold,
    how_it_went,
    label,
    main_score,
    of_fold,
    sparse,
    title,
)
from swsgp.gp.active import All, PerPoint
from swsgp.gp.covariances import Linear, Matern32

TITLE = "SWSGP with 3,000 to 100,000 inducing points that stay and a diagonal S, against SVGP-128 and SVGP-512"
N_FOLDS = 10
# Data set: M of SWSGP, and H.
Plan = dict[str, tuple[tuple[int, ...], int]]


class Level(NamedTuple):
    """What is run, and how.

    Models are trained for so much on airline and elsewhere, in seconds or, in a full run, in steps; SVGP for
    `svgp_steps`. The paper says of airline alone how many steps it took. `max_rows` of airline are used.
    """

    plan: Plan
    on_airline: int
    elsewhere: int
    learning_rate: float
    svgp_sizes: tuple[int, ...]
    svgp_steps: int | None = None
    max_rows: int | None = None


LEVELS = {
    "quick": Level(
        plan={"protein": ((5_000,), 16), "eeg": ((3_000,), 16), "airline": ((20_000,), 32)},
        on_airline=120,
        elsewhere=60,
        learning_rate=0.01,
        svgp_sizes=(128,),
        max_rows=300_000,
    ),
    "full": Level(
        plan={
            "protein": ((5_000, 10_000), 16),
            "eeg": ((3_000, 5_000), 16),
            "wave": ((5_000, 10_000), 16),
            "query": ((5_000, 10_000), 16),
            "airline": ((100_000,), 100),
        },
        on_airline=1_000_000,
        elsewhere=300_000,
        learning_rate=0.001,
        svgp_sizes=(128, 512),
        # Of which each takes five to ten times as long as one of SWSGP.
        svgp_steps=100_000,
    ),
}
PAPER = {"SWSGP-100000-100": "error 0.21, NLL 0.48 on the flights of 2008, and 0.34, 0.61 for SVGP-200"}


def run(study: Study) -> None:
    level = LEVELS[study.level]
    cases = []
    for asked, (sizes, h) in level.plan.items():
        is_airline = asked == "airline"
        length = level.on_airline if is_airline else level.elsewhere
        shared = of_fold(asked, 0, N_FOLDS) | {
            **({"time_budget": float(length)} if study.quick else {"steps": length}),
            "learning_rate": level.learning_rate,
            "max_rows": level.max_rows if is_airline else None,
        }
        cases += [{**shared, "system": f"SWSGP-{m}-{h}"} for m in sizes]
        steps = {"steps": level.svgp_steps} if level.svgp_steps else {}
        cases += [{**shared, "system": f"SVGP-{m}", **steps} for m in level.svgp_sizes]
    runs = study.runs(cases, compute)
    rows = []
    for r in runs:
        scores, case = r["scores"], r["case"]
        has_classes = "base_error" in scores
        cells = (
            f"{r['steps']:,}",
            f"{r['training_seconds']:.0f}",
            r["device"],
            f"{scores[main_score(scores)]:.3f}",
            f"{scores['nll']:.3f}",
            f"{scores['auc']:.3f}" if has_classes else "",
            f"{scores['base_error']:.3f} / {scores['base_entropy']:.3f}" if has_classes else "",
            "" if has_classes else f"{scores['coverage']:.3f}",
            PAPER.get(case["system"], ""),
        )
        rows.append((label(case), case["system"], *cells))
    unit = "seconds" if study.quick else "steps"
    of_svgp = f", SVGP for {level.svgp_steps:,} everywhere" if level.svgp_steps else ""
    of_rows = f", with {level.max_rows:,} of its rows" if level.max_rows else ""
    text = (
        f"{TITLE}. Mini-batches of 64, a rate of {level.learning_rate:g}, κ = 1; each model trained for "
        f"{level.elsewhere:,} {unit}, on airline for {level.on_airline:,}{of_rows}{of_svgp}; one of {N_FOLDS} folds is "
        "the test. Seconds are those of training, with compilation, which the figure leaves out. Airline: Matérn-3/2 "
        "plus linear. protein, wave and query standardised. In the column of the base rate: error and NLL of always "
        "predicting it; coverage is that of 95% intervals.\n\n"
    )
    head = ("data", "system", "steps", "seconds", "on", "RMSE or error", "NLL", "AUC", "base rate", "coverage", "paper")
    study.write_table(text + markdown(head, rows))
    curves: dict[str, dict[str, Any]] = {}
    several = len({r["device"] for r in runs}) > 1
    for r in runs:
        system = r["case"]["system"] + (f" ({r['device']})" if several else "")
        curves.setdefault(title(r["case"]), {})[system] = r["curve"]
    study.write_figure(figure_of_curves(curves))


def compute(case: Case) -> dict[str, Any]:
    data = fold(case["data"], case["fold"], case["n_folds"], case["max_rows"])
    kind, m, *h = case["system"].split("-")
    n_columns = data.x.shape[1]
    wide = np.full(n_columns, np.sqrt(n_columns))
    covariance = Matern32(wide) + Linear(np.full(n_columns, 0.1)) if case["data"] == "airline" else None
    curve = Curve(data, first=1.0)
    stays = kind == "SWSGP"
    trained = sparse(
        data,
        PerPoint(int(h[0])) if stays else All(),
        int(m),
        form="diag" if stays else "full",
        learn_inducing=not stays,
        placement="subset",
        covariance=covariance,
        callback=curve,
        **({"steps": 10**8} | {name: case[name] for name in ("learning_rate", "steps", "time_budget") if name in case}),
    )
    scores = curve.end(trained)
    times = {"steps": trained.steps, "training_seconds": trained.seconds}
    return {**times, **how_it_went(trained.model), "scores": scores, "curve": curve.points}
