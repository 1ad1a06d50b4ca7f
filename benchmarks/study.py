"""The study behind the defaults: one ingredient changed at a time, scored on held-out rows.

    SWSGP_DATA=folder make bench-study

Writes each run as a line of `results/study.jsonl`, and `docs/accuracy.png` from all of them. Data as in
`benchmarks/accuracy.py`, seed 0, and `arm`: the distance that a robot's arm of eight joints reaches, a smooth function
without noise. Unless said otherwise M = N, H = 32, κ = M/H (0.02 M/H for eeg), no landmarks.
"""

import argparse
import json
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from accuracy import scores_of, split

from swsgp.data.batches import RowStream
from swsgp.data.scaling import Scaling
from swsgp.fit import neighbour_likelihood, solved
from swsgp.fit.neighbour_likelihood import Hyper, Rows
from swsgp.fit.settings import Settings
from swsgp.fit.solve import maximise
from swsgp.fit.system import build
from swsgp.gp.active import PerPoint, SearchInducing
from swsgp.gp.covariances import Matern52
from swsgp.gp.likelihoods import Bernoulli, Gaussian
from swsgp.gp.model import bound, create, with_precision
from swsgp.gp.prediction import Predictor
from swsgp.ops.local import inverse_factor, prior_remainder
from swsgp.shapes import precision_scope

ROOT = Path(__file__).parent.parent
SETS = ("powerplant", "kin8nm", "arm", "eeg")


def arm(n: int = 10_000) -> tuple[np.ndarray, np.ndarray]:
    joints = np.random.default_rng(0).uniform(-0.94, 0.94, size=(n, 8))
    lengths = np.linspace(1.0, 0.3, 4)
    turn, lift = np.cumsum(joints[:, :4], axis=1), np.cumsum(joints[:, 4:], axis=1)
    parts = np.cos(turn) * np.cos(lift), np.sin(turn) * np.cos(lift), np.sin(lift)
    end = np.stack([(lengths * part).sum(axis=1) for part in parts], axis=1)
    return joints, np.linalg.norm(end - 0.75, axis=1)


class Study:
    """One data set, scaled as estimators scale it, and hyper-parameters learned from neighbours."""

    def __init__(self, name: str):
        if name == "arm":
            x, y = arm()
            x, y, x_test, y_test = x[:9000], y[:9000], x[9000:], y[9000:]
        else:
            x, y, x_test, y_test = split(name, 0)
        self.name, self.is_classes = name, len(np.unique(y)) == 2
        scaling = Scaling.of(x)
        self.x, self.x_test = scaling.apply(x), scaling.apply(x_test)
        centre, scale = (0.0, 1.0) if self.is_classes else (y.mean(), y.std())
        self.y, self.y_test = (y - centre) / scale, (y_test - centre) / scale
        self.factor = 0.02 if self.is_classes else 1.0
        self.hyper = self.learned(32)

    def start(self) -> Hyper:
        likelihood = Bernoulli() if self.is_classes else Gaussian(0.1)
        covariance = Matern52(np.full(self.x.shape[1], np.sqrt(self.x.shape[1])))
        zero = jnp.zeros(())
        return with_precision(Hyper(covariance, likelihood, jnp.zeros(1), zero, zero), "float32")

    def learned(self, k: int) -> Hyper:
        hyper = self.start()
        rows = (self.x, self.y, solved._stand_ins(hyper.likelihood, self.y))
        data = Rows(*(jnp.asarray(part, jnp.float32) for part in rows))
        run = neighbour_likelihood.start(hyper)
        settings = Settings(steps=400, batch_size=256, learning_rate=0.05)
        with precision_scope("float32"):
            *_, (last, _) = neighbour_likelihood.learn(run, hyper, data, settings, k, 1e-5)
        return eqx.combine(last.learned, eqx.filter(hyper, eqx.is_inexact_array, inverse=True))

    def learned_on_the_bound(self, kl_factor: float, tighter: bool) -> Hyper:
        """By Adam on the bound with a diagonal S, M = 2,000 and H = 32, which is what solving replaces."""
        hyper, h = self.start(), 32
        likelihood = hyper.likelihood
        model = create(
            self.x,
            hyper.covariance,
            likelihood,
            PerPoint(h),
            n_inducing=2000,
            placement="subset",
            offset=np.zeros(1),
        )
        kappa = max(1.0, kl_factor * 2000 / h)
        frozen = model.inducing
        optimiser = optax.adam(optax.cosine_decay_schedule(0.02, 3000))
        x, y = jnp.asarray(self.x, jnp.float32), jnp.asarray(self.y, jnp.float32)

        def loss(model, rows, index):
            model = eqx.tree_at(lambda m: (m.inducing, m.jitter), model, (frozen, jnp.asarray(1e-5)))
            value = bound(model, x[rows], y[rows], index, len(x), kappa)
            if tighter:
                d = jax.vmap(lambda point, own: _remainder(model, point, own))(x[rows], index) / model.likelihood.noise
                value = value + 0.5 * len(x) * jnp.mean(d - jnp.log1p(d))
            return -value / len(x)

        @eqx.filter_jit
        def step(model, state, rows, index):
            updates, state = optimiser.update(eqx.filter_grad(loss)(model, rows, index), state)
            return eqx.apply_updates(model, updates), state

        state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))
        stream = RowStream(len(x), 256, 0)
        for first in range(0, 3000, 250):
            batches = stream.batches(first, 250)
            index = SearchInducing(model.covariance, np.asarray(frozen))(self.x[batches.ravel()].astype(np.float32), h)
            for rows, own in zip(batches, index.reshape(250, 256, h), strict=True):
                model, state = step(model, state, jnp.asarray(rows), jnp.asarray(own))
        noise = jnp.zeros(()) if self.is_classes else model.likelihood.log_noise
        return Hyper(model.covariance, model.likelihood, model.offset, noise, jnp.zeros(()))

    def score(self, hyper: Hyper | None = None, m: float = 1.0, h: int = 32, landmarks: int = 0, kappa: float = 1.0):
        form = solved.Form(round(m * len(self.x)), h, landmarks, kappa * self.factor)
        start = time.perf_counter()
        model = solved.solved(hyper or self.hyper, self.x, self.y, form, "float64", 0)
        return {**self.score_of(model), "seconds": time.perf_counter() - start}

    def score_of(self, model):
        if self.is_classes:
            return scores_of(Predictor(model).probabilities(self.x_test)[:, 1], None, self.y_test, True)
        return scores_of(*Predictor(model).moments(self.x_test), self.y_test, False)

    def with_a_full_covariance(self):
        """The variance of test points with S = (P + AᵀA/σ²)⁻¹ in full, beside that with the best diagonal S."""
        form = solved.Form(len(self.x), 32, 0, self.factor)
        model = solved._without_q(self.hyper, self.x, form, "float64", 0)
        noise = float(model.likelihood.noise)
        with precision_scope("float64"):
            system = build(model, self.x)
            solution = maximise(system, model.likelihood, np.asarray(model.offset), self.y, form.kl_scale)
            test = build(model, self.x_test)
        prior = system.prior.toarray()
        precision = form.kl_scale / len(self.x) * (prior + prior.T - np.diag(np.diagonal(prior)))
        precision += (system.a.T @ system.a).toarray() / noise
        cov = np.linalg.inv(precision)
        mean = (test.a @ solution.mean)[:, 0] + float(model.offset[0])
        a = test.a.toarray()
        return {
            name: scores_of(mean, noise + test.remainder + spread, self.y_test, False)
            for name, spread in (
                ("diagonal", (test.squares @ solution.variance)[:, 0]),
                ("full", np.einsum("nm,nm->n", a @ cov, a)),
            )
        }


def _remainder(model, point, own):
    w = inverse_factor(model.k_zz(own))
    k_zx = model.covariance.matrix(model.inducing[own], point[None])
    return prior_remainder(w, k_zx, model.covariance.diagonal(point[None]))[0]


def runs(study: Study):
    """What was changed, to what, and the scores."""
    for h in (8, 16, 32, 64):
        for landmarks in (0, 256):
            yield f"H, {landmarks} landmarks", h, study.score(h=h, landmarks=landmarks)
    for landmarks in (64, 128, 512):
        yield "landmarks", landmarks, study.score(landmarks=landmarks)
    for share in (1 / 16, 1 / 8, 1 / 4, 1 / 2):
        yield "M/N", share, study.score(m=share)
        yield "M/N, 256 landmarks", share, study.score(m=share, landmarks=256)
    for kappa in (0.02, 0.07, 0.2, 0.5, 2.0) if not study.is_classes else (0.5, 3.5, 10.0, 50.0):
        yield "κH/M", kappa * study.factor, study.score(kappa=kappa)
    share, at_most = solved._SHARE_OF_NOISE, solved._MOST_JITTER
    for jitter in (0.0, 1.0):
        solved._SHARE_OF_NOISE = jitter
        yield "jitter / noise", jitter, study.score()
    solved._SHARE_OF_NOISE, solved._MOST_JITTER = share, at_most
    for k in (8, 16, 64):
        yield "neighbours in the likelihood", k, study.score(study.learned(k))
    yield "hyper-parameters from", "the neighbour likelihood", study.score()
    yield "hyper-parameters from", "the bound, κ = 1", study.score(study.learned_on_the_bound(0.0, False))
    yield "hyper-parameters from", "the bound, κ = M/H", study.score(study.learned_on_the_bound(1.0, False))
    if not study.is_classes:
        yield "hyper-parameters from", "the tighter bound, κ = 1", study.score(study.learned_on_the_bound(0.0, True))
    place = solved.starting_inputs
    solved.starting_inputs = lambda x, n, placement, seed: place(x, n, "kmeans", seed)
    yield "M/N, k-means", 1 / 8, study.score(m=1 / 8)
    solved.starting_inputs = place
    if study.name in ("powerplant", "kin8nm"):
        for name, scores in study.with_a_full_covariance().items():
            yield "S", name, scores


def picture(found: list[dict], path: Path) -> None:
    import matplotlib.pyplot as plt

    curves = ("H, 0 landmarks", "H, 256 landmarks"), ("M/N", "M/N, 256 landmarks"), ("κH/M",)
    names = [name for name in SETS if any(r["data"] == name for r in found)]
    figure, axes = plt.subplots(len(names), 3, figsize=(10, 2.6 * len(names)), squeeze=False, layout="constrained")
    for row, name in zip(axes, names, strict=True):
        own = [r for r in found if r["data"] == name]
        base = {group: next(r for r in own if r["change"] == f"H, {n} landmarks" and r["to"] == 32) for group, n in
                (("0", 0), ("256", 256))}  # fmt: skip
        for axis, group in zip(row, curves, strict=True):
            for change in group:
                kept = base["256" if "256" in change else "0"]
                at = {"M": 1.0, "κ": 0.02 if "ece" in kept else 1.0}.get(change[0])
                points = {r["to"]: r["nll"] for r in own if r["change"] == change}
                points |= {} if at is None else {at: kept["nll"]}
                places = sorted(points)
                style = {"marker": "o", "label": "256 landmarks" if "256" in change else "neighbours alone"}
                axis.plot(places, [points[place] for place in places], **style)
            axis.set_xscale("log", base=2 if group[0][0] in "HM" else 10)
            axis.set_xlabel(group[0].split(",")[0])
            axis.grid(alpha=0.3)
        row[0].set_ylabel(f"{name}\nnegative log-likelihood")
    axes[0, 1].legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--out", type=Path, default=ROOT / "results")
    asked = parser.parse_args()
    log = asked.out / "study.jsonl"
    found = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    for name in asked.sets:
        for change, to, scores in runs(Study(name)):
            found.append({"data": name, "change": change, "to": to, **scores})
            print(found[-1], flush=True)
            log.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in found), encoding="utf-8")
    picture(found, ROOT / "docs" / "accuracy.png")


if __name__ == "__main__":
    main()
