"""Pictures of models and predictions."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np

BLUE, ORANGE, GREY = "#2b6cb0", "#dd6b20", "#718096"


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
