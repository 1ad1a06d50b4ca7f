"""The default way to train: hyper-parameters from the nearest-neighbour likelihood, then q(u) in closed form."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from swsgp import processes
from swsgp.arrays import power_of_two_below
from swsgp.data.batches import split_held_out
from swsgp.data.stores import Store
from swsgp.errors import SettingError
from swsgp.fit import neighbour_likelihood
from swsgp.fit.checkpoints import Checkpoints, run_name
from swsgp.fit.loop import Trained
from swsgp.fit.neighbour_likelihood import Hyper, Rows, Run
from swsgp.fit.progress import ProgressBar
from swsgp.fit.settings import Settings
from swsgp.fit.solve import Solution, log_scores, maximise
from swsgp.fit.solve_parts import check_parts, maximise_parts, parts_of
from swsgp.fit.stopping import Clock, Reason, Report
from swsgp.fit.system import build, check_solving
from swsgp.gp.active import PerPoint, factors_of
from swsgp.gp.covariances import Covariance
from swsgp.gp.inducing import starting_inputs
from swsgp.gp.landmarks import Landmarks
from swsgp.gp.likelihoods import Gaussian, Likelihood, Poisson, Softmax, StudentT
from swsgp.gp.model import JITTER, SparseGP, create, prior_variance, with_precision
from swsgp.shapes import precision_scope

# Multiples of M / H that κ may be, largest first, without landmarks and with them.
KL_FACTORS = (1.0, 0.5, 0.2, 0.07, 0.02)
KL_FACTORS_BESIDE_LANDMARKS = KL_FACTORS[:3]
# Neighbours in the likelihood of hyper-parameters.
_N_NEIGHBORS = 32
# Rows with which the model is chosen, and rows that judge it, at most.
_MAX_TRIED, _MAX_JUDGES = 20_000, 2_000
# Nats a row by which the log score of numbers may fall short. Fewer rows than there are in the end prefer a smaller κ.
_LEAST_GAP = 0.02
# The noise, as a share of the variance of numbers, from which on it is doubted, and the nats a row that less must gain.
# Rows with equal twins ask for little noise, and the few whose twins differ are too rare among the held-out ones.
_LEAST_NOISE, _GAIN_OF_LESS_NOISE = 0.01, 0.1
# Landmarks are placed with so many rows for each.
_ROWS_PER_LANDMARK = 20
_LEAST_VARIANCE = 1e-12
# The jitter of inducing variables as a share of the noise, and relative to the variance at least and at most. What is
# finer than the noise cannot be known, and a system that asks for it takes conjugate gradients many iterations.
_SHARE_OF_NOISE = 0.3
_LEAST_JITTER, _MOST_JITTER = 1e-6, 1e-2
# Inducing variables for each neighbour with which a form is tried, at least.
_LEAST_PER_NEIGHBOR = 32


@dataclass(frozen=True)
class Form:
    """How large a model is: M, H, how many landmarks, κ as a multiple of M / H, and the noise variance at least."""

    n_inducing: int
    n_neighbors: int
    n_landmarks: int
    kl_factor: float
    least_noise: float = 0.0

    @property
    def kl_scale(self) -> float:
        return self.kl_factor * self.n_inducing / self.n_neighbors

    def for_rows(self, n_rows: int, of: int) -> "Form":
        """The same for some of the rows: with as large a share of inducing variables, but enough to be local."""
        least = min(self.n_inducing, _LEAST_PER_NEIGHBOR * self.n_neighbors)
        n_inducing = min(n_rows, max(least, round(self.n_inducing * n_rows / of)))
        return replace(self, n_inducing=n_inducing, n_neighbors=min(self.n_neighbors, n_inducing))


@dataclass(frozen=True)
class Solved:
    """A trained model, its form, and the mean held-out log score of each form that was tried."""

    trained: Trained
    form: Form
    tried: dict[Form, float]


def train_by_solving(
    model: SparseGP,
    x: np.ndarray,
    y: np.ndarray,
    settings: Settings,
    forms: Sequence[Form],
    *,
    n_held_out: int = 0,
    store: Store | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
) -> Solved:
    """Train a model with active sets of each point's own and a diagonal S on scaled data.

    Of `model` the covariance, the likelihood, the offset and the precision are used. If rows are held out, these choose
    among the forms by their log score; otherwise the first one is taken. Held-out rows have no part in the
    hyper-parameters either; q(u) is solved for once more at the end, with all rows. `settings` are those of learning
    the hyper-parameters; its `kl_scale` is not used. With a store x and y are a sample of its rows, of which inducing
    inputs and all but q(u) come.
    """
    clock = Clock()
    forms = _that_fit(forms, len(x) if store is None else store.n_rows, None if store is None else model.likelihood)
    rows, held = np.arange(len(x)), np.arange(0)
    if n_held_out:
        rows, held = split_held_out(len(x), n_held_out / len(x), settings.seed)
    likelihood, precision = model.likelihood, model.precision
    zero = jnp.zeros(())
    offset = jnp.zeros(likelihood.n_latent) if model.offset is None else model.offset
    hyper = processes.agreed_arrays(with_precision(Hyper(model.covariance, likelihood, offset, zero, zero), "float32"))
    stand_ins = _stand_ins(likelihood, y[rows])
    data = Rows(*(jax.device_put(part.astype(np.float32)) for part in (x[rows], y[rows], stand_ins)))
    history: list[Report] = []
    reason: Reason = "steps"
    run = neighbour_likelihood.start(hyper)
    checkpoints = None if checkpoint is None else Checkpoints(Path(checkpoint), run_name((hyper, data), settings))
    found = checkpoints.load(run._asdict()) if resume and checkpoints is not None else None
    if found is not None:
        run, history = Run(**found[0]), found[1]
        clock = Clock(before=history[-1].seconds if history else 0.0)
    time_to_learn = None if settings.time_budget is None else 0.5 * settings.time_budget
    try:
        shown = settings.progress and processes.is_first()
        with ProgressBar(settings.steps, shown, time_to_learn) as bar, precision_scope("float32"):
            k = min(_N_NEIGHBORS, power_of_two_below(len(rows) - 1))
            for now, value in neighbour_likelihood.learn(run, hyper, data, settings, k, JITTER["float32"]):
                run = now
                report = Report(run.step, clock.seconds, value)
                history.append(report)
                bar.update(report)
                if checkpoints is not None:
                    checkpoints.save_now_and_then(run._asdict(), history)
                if processes.interrupted():
                    reason = "interrupted"
                    break
                if time_to_learn is not None and _is_over(clock, time_to_learn):
                    reason = "time"
                    break
    except KeyboardInterrupt:
        # Of several processes one alone cannot go on.
        if processes.count() > 1:
            raise
        reason = "interrupted"
    if checkpoints is not None:
        # Solving may take longer than learning did.
        checkpoints.save(run._asdict(), history)
    # All processes go the same way from here.
    hyper = processes.agreed_arrays(eqx.combine(run.learned, eqx.filter(hyper, eqx.is_inexact_array, inverse=True)))
    least_noise = _LEAST_NOISE * float(np.var(y))
    if len(held) and isinstance(likelihood, Gaussian) and float(neighbour_likelihood.noise_of(hyper)) < least_noise:
        forms = [*forms, *(replace(form, least_noise=least_noise) for form in forms)]
    # Where there is no time to judge, the noise is kept from vanishing.
    form = next((form for form in forms if form.least_noise), forms[0])
    tried: dict[Form, float] = {}
    if len(held) and len(forms) > 1 and reason == "steps":
        n_rows = len(x) if store is None else store.n_rows
        form, tried = _best(hyper, x, y, forms, rows, held[:_MAX_JUDGES], settings.seed, n_rows)
    if reason != "interrupted":
        processes.stop_if_interrupted()
    if store is None:
        model = solved(hyper, x, y, form, precision, settings.seed)
    else:
        model = solved_from(hyper, x, store, form, precision, settings.seed)
    if form in tried:
        history.append(Report(run.step, clock.seconds, history[-1].bound, tried[form]))
    return Solved(Trained(model, tuple(history), reason, run.step, clock.seconds), form, tried)


def _that_fit(forms: Sequence[Form], n_rows: int, on_disk: Likelihood | None) -> list[Form]:
    """The forms that every process has memory for; where rows are on disk that depends on their likelihood."""
    n_own = -(-n_rows // processes.count())
    trouble, fits = None, np.zeros(len(forms))
    for i, form in enumerate(forms):
        try:
            if on_disk is None:
                check_solving(n_own, form.n_inducing, form.n_neighbors, form.n_landmarks)
            else:
                check_parts(n_own, form.n_inducing, form.n_neighbors, on_disk)
            fits[i] = 1.0
        except SettingError as error:
            trouble = trouble or error
    all_fit = processes.summed(fits) == processes.count()
    if not all_fit.any():
        raise trouble or SettingError("another process has too little memory; lower n_inducing or n_neighbors.")
    return [form for form, fit in zip(forms, all_fit, strict=True) if fit]


def _is_over(clock: Clock, seconds: float) -> bool:
    """Whether so much time has passed for the first process."""
    return bool(processes.agreed(clock.seconds > seconds))


def solved(learned: Hyper | SparseGP, x: np.ndarray, y: np.ndarray, form: Form, precision: str, seed: int) -> SparseGP:
    """A model with these hyper-parameters, and the best q for all rows, of which each process has a share."""
    model = _without_q(learned, x, form, precision, seed)
    own = slice(processes.number(), None, processes.count())
    with precision_scope("float64"):
        model = processes.agreed_arrays(model)
        system = build(model, x[own], shared=True)
        solution = maximise(system, model.likelihood, np.asarray(model.offset), y[own], form.kl_scale)
    return _with_solution(model, solution, precision)


def solved_from(
    learned: Hyper | SparseGP, sample: np.ndarray, store: Store, form: Form, precision: str, seed: int
) -> SparseGP:
    """The same for rows that lie on disk, with inducing inputs among a sample of them."""
    model = _without_q(learned, sample, form, precision, seed)
    with precision_scope("float64"):
        model = processes.agreed_arrays(model)
        solution = maximise_parts(model, parts_of(store, model), form.kl_scale)
    return _with_solution(model, solution, precision)


def _with_solution(model: SparseGP, solution: Solution, precision: str) -> SparseGP:
    with precision_scope("float64"):
        log_std = 0.5 * np.log(np.maximum(solution.variance, _LEAST_VARIANCE))
        model = eqx.tree_at(
            lambda m: (m.variational.mean, m.variational.log_std),
            model,
            (jax.device_put(solution.mean), jax.device_put(log_std)),
        )
        if model.landmarks is not None:
            root = jnp.linalg.cholesky(jnp.asarray(solution.overall_cov))
            model = eqx.tree_at(
                lambda m: (m.landmarks.mean, m.landmarks.root), model, (jnp.asarray(solution.overall_mean), root)
            )
    return with_precision(model, precision)


def _best(
    hyper: Hyper,
    x: np.ndarray,
    y: np.ndarray,
    forms: Sequence[Form],
    rows: np.ndarray,
    held: np.ndarray,
    seed: int,
    n_rows: int,
) -> tuple[Form, dict[Form, float]]:
    """The form that held-out rows prefer, after training with some of the others.

    Very little noise must gain much, which is decided by the forms with the fewest landmarks. Among those within a
    standard error of the best score, or a little gap, if y is a number: the one with fewest landmarks, then the largest
    κ, which are the cheapest and the most careful.
    """
    rows = np.random.default_rng((seed, 2)).permutation(rows)[:_MAX_TRIED]
    scores: dict[Form, np.ndarray] = {}
    tried: dict[Form, float] = {}
    fewest = min(form.n_landmarks for form in forms)
    for kind in sorted({(form.n_landmarks, form.least_noise) for form in forms}):
        if kind[0] > fewest:
            scores = _with_enough_noise(scores, tried)
            if kind[1] not in {form.least_noise for form in scores}:
                continue
        start = None
        for form in (form for form in forms if (form.n_landmarks, form.least_noise) == kind):
            smaller = form.for_rows(len(rows), n_rows)
            if start is None:
                model = _without_q(hyper, x[rows], smaller, "float64", seed)
                offset = np.asarray(model.offset)
                with precision_scope("float64"):
                    system, judges = build(model, x[rows]), build(model, x[held])
            with precision_scope("float64"):
                start = maximise(system, model.likelihood, offset, y[rows], smaller.kl_scale, start)
                scores[form] = log_scores(judges, start, model.likelihood, offset, y[held])
                tried[form] = float(np.mean(scores[form]))
    scores = _with_enough_noise(scores, tried)
    best = max(scores.values(), key=np.mean)
    short = {form: best - score for form, score in scores.items()}
    least = _LEAST_GAP if isinstance(hyper.likelihood, Gaussian) else 0.0
    good = [form for form, gap in short.items() if np.mean(gap) <= max(least, np.std(gap) / np.sqrt(len(gap)))]
    chosen = min(good, key=lambda form: (form.n_landmarks, -form.kl_factor))
    return forms[int(processes.agreed(forms.index(chosen)))], tried


def _with_enough_noise(scores: dict[Form, np.ndarray], tried: dict[Form, float]) -> dict[Form, np.ndarray]:
    """The forms that keep some noise, if there are such and less does not gain much; otherwise those with less."""
    careful = {form: score for form, score in scores.items() if form.least_noise}
    if not careful:
        return scores
    gain = max(tried[form] for form in scores) - max(tried[form] for form in careful)
    return careful if gain < _GAIN_OF_LESS_NOISE else {form: s for form, s in scores.items() if not form.least_noise}


def _without_q(learned: Hyper | SparseGP, x: np.ndarray, form: Form, precision: str, seed: int) -> SparseGP:
    """A model with these hyper-parameters in float64, its inducing inputs among the rows.

    All numbers are first rounded to the precision that the model will have, so that q fits them then.
    """
    if isinstance(learned.likelihood, Gaussian) and form.least_noise:
        log_noise = jnp.maximum(learned.likelihood.log_noise, np.log(form.least_noise))
        learned = eqx.tree_at(lambda m: m.likelihood.log_noise, learned, log_noise)
    parts = (learned.covariance, learned.likelihood, np.asarray(learned.offset))
    covariance, likelihood, offset = with_precision(with_precision(parts, precision), "float64")
    inducing = starting_inputs(x, form.n_inducing, "subset", seed).astype(precision).astype(np.float64)
    if isinstance(learned, SparseGP):
        jitter = float(learned.jitter)
    else:
        with precision_scope("float64"):
            relative = float(neighbour_likelihood.noise_of(learned)) / prior_variance(covariance, inducing)
        jitter = float(np.clip(_SHARE_OF_NOISE * relative, _LEAST_JITTER, _MOST_JITTER))
    model = create(
        x,
        covariance,
        likelihood,
        PerPoint(form.n_neighbors),
        n_inducing=form.n_inducing,
        placement=inducing,
        offset=np.asarray(offset),
        precision="float64",
        jitter=jitter,
    )
    with precision_scope("float64"):
        if form.n_landmarks:
            places = _places(covariance, x, form.n_landmarks, seed).astype(precision).astype(np.float64)
            landmarks = Landmarks.at(jax.device_put(places), likelihood.n_latent)
            model = eqx.tree_at(lambda m: m.landmarks, model, landmarks, is_leaf=lambda leaf: leaf is None)
    return model


def _places(covariance: Covariance, x: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Landmark inputs: k-means centres in the metric of the covariance."""
    found = factors_of(covariance, n_columns=x.shape[1])
    factors = np.ones(x.shape[1]) if found is None else np.maximum(np.asarray(found), 1e-12)
    some = np.random.default_rng((seed, 3)).permutation(len(x))[: n * _ROWS_PER_LANDMARK]
    return starting_inputs(x[some] * factors, n, "kmeans", seed) / factors


def _stand_ins(likelihood: Likelihood, y: np.ndarray) -> np.ndarray:
    """What stands for observations in the nearest-neighbour likelihood, (N, Q)."""
    match likelihood:
        case Gaussian():
            return y[:, None]
        case StudentT():
            middle = np.median(y)
            return np.clip(y, middle - 5.0, middle + 5.0)[:, None]
        case Poisson():
            values = np.log(y + 0.5)[:, None]
        case Softmax(n_classes=n_classes):
            values = 2.0 * (y[:, None] == np.arange(n_classes)) - 1.0
        case _:
            values = 2.0 * y[:, None] - 1.0
    return values - values.mean(axis=0)
