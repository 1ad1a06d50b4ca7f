"""The default way to train: hyper-parameters from the nearest-neighbour likelihood, then q(u) in closed form."""

from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from swsgp.data.batches import split_held_out
from swsgp.fit import neighbour_likelihood
from swsgp.fit.checkpoints import Checkpoints, run_name
from swsgp.fit.loop import Trained
from swsgp.fit.neighbour_likelihood import Hyper, Rows, Run
from swsgp.fit.progress import ProgressBar
from swsgp.fit.settings import Settings
from swsgp.fit.solve import Solution, System, build, maximise, n_neighbors_of
from swsgp.fit.stopping import Clock, Reason, Report
from swsgp.gp.active import PerPoint
from swsgp.gp.inducing import starting_inputs
from swsgp.gp.likelihoods import Gaussian, Likelihood, Poisson, Softmax, StudentT
from swsgp.gp.model import JITTER, SparseGP, create, with_precision
from swsgp.gp.prediction import Predictor
from swsgp.shapes import precision_scope

# Multiples of M / H that κ may be, largest first.
KL_FACTORS = (1.0, 0.5, 0.2, 0.07, 0.02)
# Neighbours in the likelihood of hyper-parameters.
_N_NEIGHBORS = 32
# Rows and neighbours with which the KL scale is chosen, and rows that judge it, at most.
_MAX_TRIED, _MAX_TRIED_NEIGHBORS, _MAX_JUDGES = 20_000, 64, 2_000
_LEAST_VARIANCE = 1e-12
# Relative to the variance: little for a Gaussian likelihood, whose functions may be without noise; elsewhere enough for
# conjugate gradients to converge soon where rows are nearly the same.
_JITTER = {True: 1e-6, False: 1e-5}


@dataclass(frozen=True)
class Solved:
    """A trained model, its κ as a multiple of M / H, and the mean held-out log score of each that was tried."""

    trained: Trained
    kl_factor: float
    tried: dict[float, float]


def train_by_solving(
    model: SparseGP,
    x: np.ndarray,
    y: np.ndarray,
    settings: Settings,
    *,
    kl_factor: float,
    n_held_out: int = 0,
    checkpoint: str | Path | None = None,
    resume: bool = False,
) -> Solved:
    """Train a model with active sets of each point's own and a diagonal S on scaled data.

    κ is `kl_factor` times M / H. If rows are held out, these choose among several factors by their log score. They
    have no part in the hyper-parameters either; q(u) is solved for once more at the end, with all rows. `settings`
    are those of learning the hyper-parameters; its `kl_scale` is not used.
    """
    clock = Clock()
    likelihood, offset, precision = model.likelihood, model.offset, model.precision
    n_inducing, n_neighbors = len(model.inducing), n_neighbors_of(model)
    rows, held = np.arange(len(x)), np.arange(0)
    if n_held_out:
        rows, held = split_held_out(len(x), n_held_out / len(x), settings.seed)
    zero = jnp.zeros(())
    offset = jnp.zeros(likelihood.n_latent) if offset is None else offset
    hyper = with_precision(Hyper(model.covariance, likelihood, offset, zero, zero), "float32")
    stand_ins = _stand_ins(likelihood, y[rows])
    data = Rows(*(jnp.asarray(part, jnp.float32) for part in (x[rows], y[rows], stand_ins)))
    history: list[Report] = []
    reason: Reason = "steps"
    run = neighbour_likelihood.start(hyper)
    checkpoints = None if checkpoint is None else Checkpoints(Path(checkpoint), run_name((hyper, data), settings))
    found = checkpoints.load(run._asdict()) if resume and checkpoints is not None else None
    if found is not None:
        run, history = Run(**found[0]), found[1]
        clock = Clock(before=history[-1].seconds if history else 0.0)
    try:
        with ProgressBar(settings.steps, settings.progress) as bar, precision_scope("float32"):
            k = min(_N_NEIGHBORS, len(rows) - 1)
            for now, value in neighbour_likelihood.learn(run, hyper, data, settings, k, JITTER["float32"]):
                run = now
                report = Report(run.step, clock.seconds, value)
                history.append(report)
                bar.update(report)
                if checkpoints is not None:
                    checkpoints.save_now_and_then(run._asdict(), history)
                if settings.time_budget is not None and clock.seconds > 0.5 * settings.time_budget:
                    reason = "time"
                    break
    except KeyboardInterrupt:
        reason = "interrupted"
        if checkpoints is not None:
            checkpoints.save(run._asdict(), history)
    hyper = with_precision(eqx.combine(run.learned, eqx.filter(hyper, eqx.is_inexact_array, inverse=True)), "float64")
    tried: dict[float, float] = {}
    if len(held) and reason == "steps":
        scores = _try(hyper, x, y, rows, held[:_MAX_JUDGES], n_inducing / len(x), n_neighbors, settings.seed)
        kl_factor = _largest_good(scores)
        tried = {factor: float(np.mean(score)) for factor, score in scores.items()}
    model, system = _unsolved(hyper, x, n_inducing, n_neighbors, settings.seed)
    model, _ = _with_best(model, system, y, kl_factor, None)
    if tried:
        history.append(Report(run.step, clock.seconds, history[-1].bound, tried[kl_factor]))
    trained = Trained(with_precision(model, precision), tuple(history), reason, run.step, clock.seconds)
    return Solved(trained, kl_factor, tried)


def _try(
    hyper: Hyper,
    x: np.ndarray,
    y: np.ndarray,
    rows: np.ndarray,
    held: np.ndarray,
    share: float,
    n_neighbors: int,
    seed: int,
) -> dict[float, np.ndarray]:
    """Held-out log scores with each KL factor, for a model of some of the rows with as large a share of M."""
    rows = np.random.default_rng((seed, 2)).permutation(rows)[:_MAX_TRIED]
    n_inducing = min(len(rows), max(n_neighbors, round(share * len(rows))))
    n_neighbors = min(n_neighbors, n_inducing, _MAX_TRIED_NEIGHBORS)
    model, system = _unsolved(hyper, x[rows], n_inducing, n_neighbors, seed)
    scores, solution = {}, None
    for factor in KL_FACTORS:
        model, solution = _with_best(model, system, y[rows], factor, solution)
        scores[factor] = Predictor(model).log_density(x[held], y[held])
    return scores


def _largest_good(scores: dict[float, np.ndarray]) -> float:
    """The largest factor whose score is within a standard error of the best one's: among equals, the most careful."""
    best = max(scores.values(), key=np.mean)
    shortfalls = {factor: best - score for factor, score in scores.items()}
    return max(factor for factor, short in shortfalls.items() if np.mean(short) <= np.std(short) / np.sqrt(len(short)))


def _unsolved(hyper: Hyper, x: np.ndarray, n_inducing: int, n_neighbors: int, seed: int) -> tuple[SparseGP, System]:
    """A model with these hyper-parameters in float64, its inducing inputs among the rows, and its system."""
    model = create(
        x,
        hyper.covariance,
        hyper.likelihood,
        PerPoint(n_neighbors),
        n_inducing=n_inducing,
        placement=starting_inputs(x, n_inducing, "subset", seed),
        offset=np.asarray(hyper.offset),
        precision="float64",
        jitter=_JITTER[isinstance(hyper.likelihood, Gaussian)],
    )
    with precision_scope("float64"):
        return model, build(model, x)


def _with_best(
    model: SparseGP, system: System, y: np.ndarray, factor: float, start: Solution | None
) -> tuple[SparseGP, Solution]:
    """The model with the best q(u) for κ = factor · M / H."""
    kappa = max(1.0, factor * len(model.inducing) / n_neighbors_of(model))
    with precision_scope("float64"):
        solution = maximise(system, model.likelihood, np.asarray(model.offset), y, kappa, start)
        log_std = 0.5 * np.log(np.maximum(solution.variance, _LEAST_VARIANCE))
        model = eqx.tree_at(
            lambda m: (m.variational.mean, m.variational.log_std),
            model,
            (jnp.asarray(solution.mean), jnp.asarray(log_std)),
        )
    return model, solution


def _stand_ins(likelihood: Likelihood, y: np.ndarray) -> np.ndarray:
    """What stands for observations in the nearest-neighbour likelihood, (N, Q)."""
    match likelihood:
        case Gaussian():
            return y[:, None]
        case StudentT():
            return np.clip(y - np.median(y), -5.0, 5.0)[:, None]
        case Poisson():
            values = np.log(y + 0.5)[:, None]
        case Softmax(n_classes=n_classes):
            values = 2.0 * (y[:, None] == np.arange(n_classes)) - 1.0
        case _:
            values = 2.0 * y[:, None] - 1.0
    return values - values.mean(axis=0)
