"""How an estimator's model is trained, by the choices in its record: solved for, by stochastic gradients, or else."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from swsgp import processes
from swsgp.baselines.deep_features import fit_deep_features
from swsgp.baselines.exact import fit_full_gp
from swsgp.baselines.local_gps import fit_local_gps
from swsgp.baselines.predictive import BaselineWithSensitivity
from swsgp.data.batches import split_held_out
from swsgp.data.stores import Store
from swsgp.errors import NumericalError, SettingError
from swsgp.fit.defaults import Choices
from swsgp.fit.loop import Trained, train, train_from
from swsgp.fit.settings import Settings
from swsgp.fit.solved import KL_FACTORS, KL_FACTORS_BESIDE_LANDMARKS, Form, solved, train_by_solving
from swsgp.fit.stopping import Clock, Reason, Report
from swsgp.fitted import Fitted
from swsgp.gp.likelihoods import Gaussian

# The KL scale as a multiple of M / H where no rows are held out to choose it, for numbers and for classes.
_KL_FACTOR = {True: 0.5, False: 0.2}
# Numbers of the rows that a solved model keeps for later, at most: 200 MB in float32.
_MAX_KEPT = 50_000_000
# Steps of more training, where their number is left open.
_MORE_STEPS = 1000


@dataclass(frozen=True)
class Outcome:
    """A model that was trained, and how it went."""

    fitted: Fitted
    history: tuple[Report, ...]
    reason: Reason
    steps: int
    seconds: float


def climb(start: Fitted, x: np.ndarray, y: np.ndarray, checkpoint: Any, resume: bool, progress: bool) -> Outcome:
    """Train by stochastic gradients."""
    chosen = start.record["settings"]
    rows, held = np.arange(len(x)), None
    if chosen["n_held_out"]:
        rows, apart = split_held_out(len(x), chosen["n_held_out"] / len(x), chosen["seed"])
        held = x[apart], y[apart]
    settings = _climbing(chosen, progress)
    options = {"held_out": held, "checkpoint": checkpoint, "resume": resume}
    return _climbed(start, train(start.sparse, x[rows], y[rows], settings, **options))


def climb_from(
    start: Fitted,
    store: Store,
    held: tuple[np.ndarray, np.ndarray] | None,
    checkpoint: Any,
    resume: bool,
    progress: bool,
) -> Outcome:
    """Train by stochastic gradients, on rows that lie on disk."""
    settings = _climbing(start.record["settings"], progress)
    options = {"held_out": held, "checkpoint": checkpoint, "resume": resume}
    return _climbed(start, train_from(start.sparse, store, settings, **options))


def _climbing(chosen: dict[str, Any], progress: bool) -> Settings:
    return replace(
        _settings(chosen, progress),
        schedule="constant" if chosen["preset"] == "paper" else "cosine",
        learn_inducing=chosen["learn_inducing"],
        kl_scale=chosen["kl_scale"],
        evaluate_every=max(1, chosen["max_steps"] // 20),
    )


def _climbed(start: Fitted, trained: Trained) -> Outcome:
    if trained.reason == "not finite" and trained.steps == 0:
        raise NumericalError("training came to no finite number; look for extreme values, or use precision='float64'.")
    return _outcome(start, trained)


def climb_on(fitted: Fitted, x: np.ndarray, y: np.ndarray, max_steps: Any, progress: bool) -> Outcome:
    """Go on with new rows by stochastic gradients, which move q(u) where these lie."""
    chosen = fitted.record["settings"]
    settings = replace(
        _settings(chosen, progress),
        steps=_MORE_STEPS if max_steps == "auto" else max_steps,
        kl_scale=chosen["kl_scale"],
        learn_hyperparameters=False,
    )
    return _outcome(fitted, train(fitted.sparse, x, y, settings, n_data=fitted.record["rows"] + len(x)))


def solve(
    start: Fitted,
    x: np.ndarray,
    y: np.ndarray,
    checkpoint: str | Path | None,
    resume: bool,
    progress: bool,
    store: Store | None = None,
) -> Outcome:
    """Learn hyper-parameters from neighbours and solve for q(u); also says what held-out rows chose.

    With a store, q(u) is solved for with its rows, of which x and y are a sample.
    """
    chosen = start.record["settings"]
    found = train_by_solving(
        start.sparse,
        x,
        y,
        _settings(chosen, progress),
        _forms(start),
        n_held_out=chosen["n_held_out"],
        store=store,
        checkpoint=checkpoint,
        resume=resume,
    )
    tried = [
        {
            "n_landmarks": form.n_landmarks,
            "kl_scale": form.kl_scale,
            "least_noise": form.least_noise * start.unit**2,
            "score": score - np.log(start.unit),
        }
        for form, score in found.tried.items()
    ]
    fitted = _with_form(start, found.form, x, y, {"held_out_scores": tried})
    # A sample is not all that was seen.
    return _outcome(fitted if store is None else replace(fitted, rows=None), found.trained)


def solve_on(fitted: Fitted, x: np.ndarray, y: np.ndarray, sizes: Choices) -> Outcome:
    """Solve for q(u) once more, with new rows beside all that were seen before."""
    clock = Clock()
    if fitted.rows is None:
        raise SettingError(
            f"the model was trained on {fitted.record['rows']:,} rows, too many to be kept for partial_fit; "
            "fit a new one on all rows."
        )
    chosen = fitted.record["settings"]
    x, y = (np.concatenate([old.astype(np.float64), new]) for old, new in zip(fitted.rows, (x, y), strict=True))
    # A κ that was chosen grows with M / H; one that was given stays.
    own = (chosen["n_inducing"], chosen["n_neighbors"])
    n_inducing, n_neighbors = own if "kl_scale" in fitted.record["chosen"] else (sizes.n_inducing, sizes.n_neighbors)
    kl_factor = chosen["kl_scale"] * n_neighbors / n_inducing
    form = Form(sizes.n_inducing, sizes.n_neighbors, chosen["n_landmarks"], kl_factor)
    model = solved(fitted.sparse, x, y, form, fitted.sparse.precision, chosen["seed"])
    fitted = replace(_with_form(fitted, form, x, y, {}), model=model)
    return Outcome(fitted, (), "steps", fitted.record["steps"], clock.seconds)


def fit_other_system(
    start: Fitted, x: np.ndarray, y: np.ndarray, checkpoint: Any, resume: bool, progress: bool
) -> Outcome:
    """Train a system that the paper compares with; of the model at the start its covariance and likelihood count."""
    clock, chosen = Clock(), start.record["settings"]
    if processes.count() > 1:
        raise SettingError(f"model={chosen['model']!r} trains in one process; leave distributed out.")
    if checkpoint is not None or resume:
        raise SettingError(f"model={chosen['model']!r} has no checkpoints; leave checkpoint and resume out.")
    history: list[Report] = []
    kind, covariance, likelihood = chosen["model"], start.sparse.covariance, start.sparse.likelihood
    shared: dict[str, Any] = {"seed": chosen["seed"], "progress": progress}
    model: BaselineWithSensitivity
    if kind == "dgp-rbf":
        names = ("batch_size", "learning_rate", "precision")
        more = {name: chosen[name] for name in names}
        model = fit_deep_features(x, y, likelihood, steps=chosen["max_steps"], **more, **shared)
    elif not isinstance(likelihood, Gaussian):
        raise SettingError(f"model={kind!r} learns numbers with Gaussian noise; use swsgp, swsgp-u, svgp or dgp-rbf.")
    elif kind == "full-gp":
        options = {"covariance": covariance, "max_steps": chosen["max_steps"], "callback": history.append}
        model = fit_full_gp(x, y, **options, **shared)
    else:
        model = fit_local_gps(
            x,
            y,
            kind=kind.removesuffix("-gps"),
            covariance=covariance,
            n_experts=chosen["n_inducing"],
            n_points=chosen["n_neighbors"],
            steps=chosen["max_steps"],
            learning_rate=chosen["learning_rate"],
            **shared,
        )
    n_steps = history[-1].step if history else chosen["max_steps"]
    return Outcome(replace(start, model=model), tuple(history), "steps", n_steps, clock.seconds)


def _outcome(fitted: Fitted, trained: Trained) -> Outcome:
    fitted = replace(fitted, model=trained.model)
    return Outcome(fitted, trained.history, trained.reason, trained.steps, trained.seconds)


def _settings(chosen: dict[str, Any], progress: bool) -> Settings:
    return Settings(
        steps=chosen["max_steps"],
        batch_size=chosen["batch_size"],
        learning_rate=chosen["learning_rate"],
        time_budget=chosen["time_budget"],
        seed=chosen["seed"],
        progress=progress,
    )


def _forms(start: Fitted) -> list[Form]:
    """What held-out rows may choose from; one form if there are none."""
    chosen, are_chosen = start.record["settings"], start.record["chosen"]
    sizes = chosen["n_inducing"], chosen["n_neighbors"]
    can_choose = chosen["n_held_out"] > 0
    landmarks = [0, chosen["n_landmarks"]] if "n_landmarks" in are_chosen and can_choose else [chosen["n_landmarks"]]
    forms = []
    for n_landmarks in dict.fromkeys(landmarks):
        if chosen["kl_scale"] is not None:
            factors: tuple[float, ...] = (chosen["kl_scale"] * sizes[1] / sizes[0],)
        elif can_choose:
            factors = KL_FACTORS_BESIDE_LANDMARKS if n_landmarks else KL_FACTORS
        else:
            factors = (_KL_FACTOR[start.labels is None],)
        if chosen["kl_scale"] is None:
            # κ is 1 at least.
            factors = tuple(dict.fromkeys(max(factor, sizes[1] / sizes[0]) for factor in factors))
        forms += [Form(*sizes, n_landmarks, factor) for factor in factors]
    return forms


def _with_form(fitted: Fitted, form: Form, x: np.ndarray, y: np.ndarray, more: dict[str, Any]) -> Fitted:
    settings = fitted.record["settings"] | {
        "n_inducing": form.n_inducing,
        "n_neighbors": form.n_neighbors,
        "n_landmarks": form.n_landmarks,
        "kl_scale": form.kl_scale,
    }
    precision = fitted.sparse.precision
    rows = (x.astype(precision), y.astype(precision)) if x.size <= _MAX_KEPT else None
    return replace(fitted, rows=rows, record=fitted.record | {"settings": settings} | more)
