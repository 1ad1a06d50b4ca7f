"""The prior over f: conditionals on random active sets, and what is left when these are averaged out."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from swsgp.experiments.study import SEED, Case, Study, markdown
from swsgp.plots import BLUE, GREY, ORANGE

TITLE = "The prior over f given u and w, and its marginal beside the true prior"
M, H, N_POINTS = 32, 8, 120
LENGTHSCALE = 0.15
# Draws of u, w and f for the marginal.
LEVELS = {"quick": 20_000, "full": 200_000}
N_SHOWN = 4


def run(study: Study) -> None:
    n_draws = LEVELS[study.level]
    (result,) = study.runs([{"m": M, "h": H, "draws": n_draws}], compute)
    text = (
        f"{TITLE}. {M} inducing points, {H} of them active at random; Matérn-5/2. Given w, u and f have the joint "
        "prior of the process, so f without u and w has its prior again, whatever w is drawn from. The largest "
        "difference between a covariance over the draws and the true one, beside the standard error of a covariance "
        "that is right:\n\n"
    )
    rows = [(f"{n_draws:,}", f"{result['largest_difference']:.4f}", f"{result['standard_error']:.4f}")]
    study.write_table(text + markdown(("draws", "largest difference", "standard error"), rows))
    study.write_figure(_figure(np.random.default_rng(1)))


def compute(case: Case) -> dict[str, Any]:
    draws = _draws(np.random.default_rng(SEED), case["draws"])
    difference = np.abs(draws.T @ draws / len(draws) - _covariance(GRID, GRID)).max()
    # The variance of a product of two standard normals of correlation 1 is 2.
    return {"largest_difference": float(difference), "standard_error": float(np.sqrt(2.0 / len(draws)))}


GRID = np.linspace(0.0, 1.0, N_POINTS)
INDUCING = np.linspace(0.0, 1.0, M)


def _covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    r = np.sqrt(5.0) * np.abs(a[:, None] - b) / LENGTHSCALE
    return (1.0 + r + r**2 / 3.0) * np.exp(-r)


def _conditional(active: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of the active u in the mean of f, a root of what they leave open, and a root of their own prior."""
    z = INDUCING[active]
    k_zz, k_zx = _covariance(z, z) + 1e-10 * np.eye(len(z)), _covariance(z, GRID)
    weights = np.linalg.solve(k_zz, k_zx).T
    rest = _covariance(GRID, GRID) - weights @ k_zx
    return weights, np.linalg.cholesky(rest + 1e-10 * np.eye(N_POINTS)), np.linalg.cholesky(k_zz)


def _draws(rng: np.random.Generator, n: int, n_sets: int = 200) -> np.ndarray:
    """Draws of f: w at random, u given w, f given both."""
    parts = []
    for _ in range(n_sets):
        weights, rest, root = _conditional(rng.choice(M, H, replace=False))
        u = rng.normal(size=(n // n_sets, H)) @ root.T
        parts.append(u @ weights.T + rng.normal(size=(len(u), N_POINTS)) @ rest.T)
    return np.concatenate(parts)


def _figure(rng: np.random.Generator) -> Figure:
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    colours = plt.get_cmap("viridis")(np.linspace(0.1, 0.85, N_SHOWN))
    for colour in colours:
        active = rng.choice(M, H, replace=False)
        weights, rest, root = _conditional(active)
        u = root @ rng.normal(size=H)
        mean, band = weights @ u, 1.96 * np.sqrt(np.sum(rest**2, axis=1))
        panels[0].plot(GRID, mean, color=colour)
        panels[0].fill_between(GRID, mean - band, mean + band, color=colour, alpha=0.12, linewidth=0)
        panels[0].plot(INDUCING[active], u, "o", color=colour, markersize=4)
    panels[0].set_title("f given u and w, for several w", loc="left", fontsize=10)
    draws = _draws(rng, 10_000)
    for level in (0.025, 0.25, 0.5, 0.75, 0.975):
        is_first = level == 0.025
        panels[1].plot(GRID, np.quantile(draws, level, axis=0), color=BLUE, label="marginal" if is_first else None)
        # Quantiles of a standard normal.
        line = {0.025: -1.96, 0.25: -0.674, 0.5: 0.0, 0.75: 0.674, 0.975: 1.96}[level]
        panels[1].axhline(line, color=ORANGE, linestyle="--", label="true prior" if is_first else None)
    panels[1].plot(GRID, draws[:5].T, color=GREY, alpha=0.4, linewidth=0.8)
    panels[1].set_title("f without u and w: quantiles and five draws", loc="left", fontsize=10)
    panels[1].legend(frameon=False, fontsize=8)
    return figure
