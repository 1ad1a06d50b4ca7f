"""What `swsgp demo` does: two small problems on data that come with the dependencies."""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from swsgp.data.batches import split_held_out
from swsgp.data.scaling import Scaling
from swsgp.files import replacing, write
from swsgp.fit.loop import train
from swsgp.fit.settings import Settings
from swsgp.gp.active import Active, All, PerPoint
from swsgp.gp.covariances import Matern52
from swsgp.gp.likelihoods import Bernoulli, Gaussian
from swsgp.gp.model import SparseGP, create
from swsgp.gp.prediction import Predictor
from swsgp.metrics import calibration_error, class_nll, error_rate
from swsgp.plots import posteriors_1d

N_INDUCING = 128
N_NEIGHBORS = 16
SYSTEMS: dict[str, Active] = {"SVGP-128": All(), "SWSGP-128-16": PerPoint(N_NEIGHBORS)}


def run(out: Path, console: Console) -> None:
    """Both parts of the demo; files go to the folder `out`, which must be there."""
    picture = out / "posterior-1d.png"
    regression(picture, console)
    table = out / "digits.md"
    digits(table, console)
    console.print(f"Wrote {picture} and {table}.", highlight=False, soft_wrap=True)


def regression(picture: Path, console: Console) -> None:
    """The one-dimensional regression of the paper: two posteriors that look the same, one much cheaper."""
    console.print(
        f"One-dimensional regression, {N_INDUCING} inducing points, of which SWSGP uses {N_NEIGHBORS} a point"
    )
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0.0, 10.0, 1000))
    x = x[(x < 4.2) | (x > 5.2)]
    y = np.sin(2.0 * x) + 0.4 * np.sin(7.0 * x) * (x > 6) + 0.15 * rng.normal(size=len(x))
    grid = np.linspace(-0.5, 10.5, 600)
    posteriors = {}
    for name, active in SYSTEMS.items():
        model = create(x[:, None], Matern52(0.5), Gaussian(0.05), active, n_inducing=N_INDUCING, covariance_form="full")
        trained = _train(
            model, x[:, None], y, Settings(steps=1000, batch_size=64, learning_rate=0.02, progress=True), name, console
        )
        mean, variance = Predictor(trained).moments(grid[:, None])
        posteriors[name] = (mean, variance, np.asarray(trained.inducing)[:, 0])
    with replacing(picture) as new:
        posteriors_1d(new, x, y, grid, posteriors)


def digits(table_file: Path, console: Console) -> None:
    """Odd against even digits, as the paper does with MNIST."""
    console.print("Odd against even handwritten digits (scikit-learn's 8 × 8 images)")
    images, labels = load_digits(return_X_y=True)
    odd = (labels % 2).astype(float)
    rows, test = split_held_out(len(images), 0.25, seed=0)
    scaling = Scaling.of(images[rows])
    # One scale for all pixels, as the paper has it: a pixel that hardly varies must not be blown up.
    inputs = (images - scaling.centre) / scaling.scale.max()
    results = {}
    for name, active in SYSTEMS.items():
        model = create(inputs[rows], Matern52(4.0), Bernoulli(), active, n_inducing=N_INDUCING, covariance_form="full")
        settings = Settings(steps=1000, batch_size=64, learning_rate=0.02, learn_inducing=True, progress=True)
        trained = _train(model, inputs[rows], odd[rows], settings, name, console)
        results[name] = Predictor(trained).probabilities(inputs[test])
    logistic = LogisticRegression(max_iter=1000).fit(inputs[rows], odd[rows])
    results["logistic regression"] = logistic.predict_proba(inputs[test])
    scores = {
        name: (error_rate(odd[test], p), class_nll(odd[test], p), calibration_error(odd[test], p))
        for name, p in results.items()
    }
    _show(scores, len(test), console)
    lines = ["| model | error | NLL | calibration error |", "|---|---|---|---|"]
    lines += [f"| {name} | {error:.3f} | {nll:.3f} | {ece:.3f} |" for name, (error, nll, ece) in scores.items()]
    write(table_file, ("\n".join(lines) + "\n").encode())


def _train(model: SparseGP, x: np.ndarray, y: np.ndarray, settings: Settings, name: str, console: Console) -> SparseGP:
    trained = train(model, x, y, settings)
    console.print(f"  {name}: {trained.steps} steps in {trained.seconds:.1f} s", highlight=False)
    return trained.model


def _show(scores: dict[str, tuple[float, float, float]], n_test: int, console: Console) -> None:
    table = Table(title=f"{n_test} test images", title_justify="left")
    table.add_column("model")
    for column in ("error", "NLL", "calibration error"):
        table.add_column(column, justify="right")
    for name, values in scores.items():
        table.add_row(name, *(f"{value:.3f}" for value in values))
    console.print(table)
