"""Pictures of models and predictions."""

import re
import warnings
from collections.abc import Callable, Mapping
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter, ScalarFormatter

BLUE, ORANGE, GREY = "#2b6cb0", "#dd6b20", "#718096"
INK, RULE = "#1a202c", "#e2e8f0"


def plain_ticks(axis: Axis) -> None:
    """A logarithmic axis with numbers as one writes them, at 1, 3, 10, 30, …"""
    axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axis.set_major_formatter(ScalarFormatter())
    axis.set_minor_formatter(NullFormatter())


def posteriors_1d(
    path: Path,
    x: np.ndarray,
    y: np.ndarray,
    grid: np.ndarray,
    posteriors: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> None:
    """Data, predictive mean and 95% band of models with one input, one panel under the other.

    Each posterior is the mean and variance of a new observation on the grid, and the inducing inputs.
    """
    figure, panels = plt.subplots(
        len(posteriors), 1, figsize=(8, 2.6 * len(posteriors)), sharex=True, sharey=True, squeeze=False
    )
    for panel, (name, (mean, variance, inducing)) in zip(panels[:, 0], posteriors.items(), strict=True):
        band = 1.96 * np.sqrt(variance)
        panel.scatter(x, y, s=4, color=GREY, alpha=0.4, linewidths=0, label="data")
        panel.fill_between(grid, mean - band, mean + band, color=ORANGE, alpha=0.2, linewidth=0, label="95% band")
        panel.plot(grid, mean, color=ORANGE, linewidth=1.5, label="mean")
        bottom = np.full(len(inducing), panel.get_ylim()[0])
        panel.scatter(inducing, bottom, s=12, marker="|", color=BLUE, label="inducing inputs")
        panel.set_title(name, loc="left", fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_ylabel("y")
    panels[0, 0].legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, fontsize=8, frameon=False)
    panels[-1, 0].set_xlabel("x")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


# --------------------------------------------------------------------------------------------- the report page

# Text stays text, in the fonts of the page, and a $ in the user's names is a dollar.
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_SHADES = LinearSegmentedColormap.from_list("shades", ["#d5e3f2", BLUE, "#1a365d"])
_CURVES = [(colour, line) for line in ("-", "--") for colour in (BLUE, ORANGE, "#2f855a", "#805ad5", GREY)]

MOST_POINTS = 5000  # that are drawn one by one
MOST_CURVES = len(_CURVES)

Drawn = ParamSpec("Drawn")


def svg(
    name: str, label: str, draw: Callable[Concatenate[Figure, Drawn], None], *args: Drawn.args, **kwargs: Drawn.kwargs
) -> str:
    """What `draw` puts on a figure, as an SVG element to stand in a page; `label` describes it to screen readers.

    Figures of one page need different names: their ids are made from them.
    """
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": name}), warnings.catch_warnings():
        # matplotlib's font only measures the text; the browser has fonts for all scripts.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=(4.8, 3.5), layout="constrained")
        draw(figure, *args, **kwargs)
        out = StringIO()
        figure.savefig(out, format="svg", metadata=_NO_METADATA)
    width, height = 72.0 * figure.get_size_inches()
    opening = f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}">'
    return opening + _compact(out.getvalue())


def _compact(text: str) -> str:
    """The inside of an SVG file and its closing tag, without what a page does not need."""
    inside = text[text.index(">", text.index("<svg")) + 1 :].strip()
    inside = re.sub(r"\n\s*", "\n", inside)
    # Names of groups would clash between figures; markers without a fill have their style in their definition.
    inside = re.sub(r'<g id="[^"]*"', "<g", inside)
    inside = re.sub(r'(<use [^>]*?) style="(?![^"]*fill: #)[^"]*"', r"\1", inside)
    return re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), inside)


def training_curve(figure: Figure, steps: np.ndarray, values: np.ndarray, label: str) -> None:
    """Values against steps."""
    axes = figure.subplots()
    axes.plot(steps, values, color=BLUE, linewidth=1.2)
    if len(values) <= 50:
        _dots(axes, steps, values, size=4.0)
    # The first values are often so low that nothing could be read from the others: they may lie below the axis.
    lowest = values[len(values) // 20 :].min()
    axes.set(xlabel="step", ylabel=label, ylim=_padded(lowest, values.max()))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.grid(axis="y", color=RULE)


def observed_against_predicted(figure: Figure, observed: np.ndarray, mean: np.ndarray) -> None:
    """The cloud of rows, with the diagonal on which both agree."""
    axes = figure.subplots()
    window = _window(np.concatenate([observed, mean]))
    _cloud(axes, mean, observed, window, window)
    axes.plot(window, window, color=ORANGE, linewidth=1.2)
    axes.set(xlabel="predicted", ylabel="observed")


def residuals_against_predicted(figure: Figure, observed: np.ndarray, mean: np.ndarray, std: np.ndarray) -> None:
    """Observed minus predicted, with lines at ±2 std: its median in 20 parts of the rows, by their prediction."""
    axes = figure.subplots()
    residual = observed - mean
    parts = np.array_split(np.argsort(mean), min(20, len(mean)))
    centre = np.array([np.median(mean[part]) for part in parts])
    band = np.array([2.0 * np.median(std[part]) for part in parts])
    across = _window(mean)
    _cloud(axes, mean, residual, across, _window(np.concatenate([residual, band, -band])))
    x, reach = np.concatenate([across[:1], centre, across[1:]]), np.concatenate([band[:1], band, band[-1:]])
    known = np.isfinite(reach)
    axes.plot(x[known], reach[known], x[known], -reach[known], color=ORANGE, linewidth=1.2)
    axes.axhline(0.0, color=ORANGE, linewidth=0.8)
    axes.set(xlabel="predicted", ylabel="observed − predicted")


def coverage_against_level(figure: Figure, position: np.ndarray) -> None:
    """Share of rows inside central intervals against their nominal level, from .05 to .99.

    A row is inside the interval of level p if its position in the predictive distribution, from 0 to 1, is at most
    p/2 away from ½. The grey band is where 95% of the shares of that many calibrated rows would lie.
    """
    axes = figure.subplots()
    levels = np.append(np.arange(1, 20) / 20.0, 0.99)
    share = np.array([np.mean(np.abs(2.0 * position - 1.0) <= level) for level in levels])
    grid = np.linspace(0.0, 1.0, 101)
    chance = _chance(grid, len(position))
    lower, upper = np.maximum(grid - chance, 0.0), np.minimum(grid + chance, 1.0)
    axes.fill_between(grid, lower, upper, color=GREY, alpha=0.25, linewidth=0)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
    axes.plot(levels, share, color=BLUE, linewidth=1.2)
    _dots(axes, levels, share, size=4.0)
    axes.set(xlabel="nominal level of the interval", ylabel="share of rows inside", xlim=(0, 1), ylim=(0, 1.02))
    _percent(axes)


def position_histogram(figure: Figure, position: np.ndarray) -> None:
    """Histogram of positions in the predictive distribution, relative to a flat one, with the band of chance."""
    axes = figure.subplots()
    n_bins = 20
    counts, edges = np.histogram(position, bins=n_bins, range=(0.0, 1.0))
    chance = n_bins * _chance(np.full(len(edges), 1.0 / n_bins), len(position))
    axes.stairs(counts * n_bins / len(position), edges, fill=True, color=BLUE, alpha=0.7)
    axes.fill_between(edges, np.maximum(1.0 - chance, 0.0), 1.0 + chance, color=GREY, alpha=0.25, linewidth=0)
    axes.axhline(1.0, color=GREY, linewidth=0.8)
    axes.set(xlabel="position in the predictive distribution", ylabel="rows, relative to flat", xlim=(0, 1))


def reliability(figure: Figure, right: np.ndarray, confidence: np.ndarray) -> None:
    """Share of right predictions against the probability they were given, in 15 bins, over the bins' counts."""
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    n_bins = 15
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    counts = np.bincount(bins, minlength=n_bins)
    used = counts > 0
    y = np.bincount(bins, weights=right, minlength=n_bins)[used] / counts[used]
    x = np.bincount(bins, weights=confidence, minlength=n_bins)[used] / counts[used]
    chance = _chance(x, counts[used])
    upper.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
    upper.vlines(x, x - chance, x + chance, color=GREY, alpha=0.4, linewidth=4)
    _dots(upper, x, y, size=5.0)
    lower.stairs(counts, np.linspace(0.0, 1.0, n_bins + 1), fill=True, color=BLUE, alpha=0.7)
    upper.set(ylabel="share right", xlim=(0, 1), ylim=(0, 1.02))
    lower.set(xlabel="probability of the predicted class", ylabel="rows")
    lower.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    _percent(upper)


def roc(figure: Figure, curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """ROC curve of each class against the rest; a curve is which rows have the class, and its probabilities."""
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
    for (name, (is_class, score)), (colour, line) in zip(curves.items(), _CURVES, strict=False):
        false, true = _roc(is_class, score)
        text = f"{_short(name)}, area {np.trapezoid(true, false):.3f}"
        # At most 400 of what may be a million corners, evenly along the curve.
        corners = np.unique(np.searchsorted(false + true, np.linspace(0.0, 2.0, 400)).clip(max=len(true) - 1))
        axes.plot(false[corners], true[corners], color=colour, linestyle=line, linewidth=1.2, label=text)
    axes.legend(loc="lower right", fontsize=8)
    axes.set(xlabel="share of other rows also found", ylabel="share of the class's rows found")
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    _percent(axes)


def _roc(is_class: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """False and true positive rates as the threshold falls; equal scores pass it together."""
    order = np.argsort(-score)
    last = np.append(np.diff(score[order]) != 0, True)
    found, false = np.cumsum(is_class[order])[last], np.cumsum(~is_class[order])[last]
    return np.append(0.0, false / false[-1]), np.append(0.0, found / found[-1])


def probability_histogram(figure: Figure, groups: Mapping[str, np.ndarray], of: str) -> None:
    """Histograms of the probability of one class, for the rows of each true class, as shares of them."""
    axes = figure.subplots()
    for (name, probabilities), colour in zip(groups.items(), (GREY, BLUE), strict=True):
        counts, edges = np.histogram(probabilities, bins=20, range=(0.0, 1.0))
        text = f"{_short(name)} ({len(probabilities):,})"
        axes.stairs(counts / max(len(probabilities), 1), edges, fill=True, color=colour, alpha=0.6, label=text)
    axes.legend(loc="upper center", fontsize=8)
    axes.set(xlabel=f"probability of {_short(of)}", ylabel="share of the class's rows", xlim=(0, 1))
    _percent(axes)


def _cloud(
    axes: Axes, x: np.ndarray, y: np.ndarray, x_window: tuple[float, float], y_window: tuple[float, float]
) -> None:
    """Points, or above 5,000 rows cells shaded by their number of rows, and how many rows are out of sight."""
    inside = (x_window[0] <= x) & (x <= x_window[1]) & (y_window[0] <= y) & (y <= y_window[1])
    if len(x) > MOST_POINTS:
        extent = (*x_window, *y_window)
        axes.hexbin(x[inside], y[inside], gridsize=45, extent=extent, bins="log", mincnt=1, cmap=_SHADES, linewidths=0)
    else:
        _dots(axes, x[inside], y[inside], size=3.0, alpha=0.45)
    axes.set(xlim=x_window, ylim=y_window)
    n_hidden = len(x) - int(inside.sum())
    if n_hidden:
        axes.set_title(f"rows outside: {n_hidden:,}", loc="right", fontsize=8)


def _dots(axes: Axes, x: np.ndarray, y: np.ndarray, size: float, alpha: float = 1.0) -> None:
    # Short strokes with round ends: SVG has the stroke of a marker once, but repeats a fill with every point.
    line = axes.plot(x, y, linestyle="", marker=MarkerStyle("_", capstyle="round"), alpha=alpha)[0]
    line.set(markersize=0.1, markeredgewidth=size, markeredgecolor=BLUE, markerfacecolor="none")


def _window(values: np.ndarray) -> tuple[float, float]:
    """An interval that has almost all finite values, but does not stretch to far outliers."""
    known = values[np.isfinite(values)].astype(float)
    if len(known) == 0:
        return 0.0, 1.0
    low, high = np.quantile(known, (0.001, 0.999))
    return _padded(low, high)


def _padded(low: float, high: float) -> tuple[float, float]:
    pad = 0.08 * (high - low) if high > low else 0.1 * abs(low) or 1.0
    return float(low - pad), float(high + pad)


def _chance(share: np.ndarray, n: np.ndarray | int) -> np.ndarray:
    """How far the share among n rows lies from its expectation, at most, in 95% of cases."""
    return 1.96 * np.sqrt(share * (1.0 - share) / n)


def _percent(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _short(name: str) -> str:
    name = " ".join(name.split())
    return name if len(name) <= 24 else name[:23] + "…"
