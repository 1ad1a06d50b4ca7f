r"""Scores of predictions, with the scores of knowing nothing beside them.

All functions take NumPy arrays with one entry, or one row, for each case. Class labels count from 0.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, ndtr, ndtri
from scipy.stats import rankdata

# The paper's regression tables have ¼ log 2π where the Gaussian log-density has ½ log 2π.
PAPER_SHIFT = 0.25 * float(np.log(2.0 * np.pi))

_TINY = np.finfo(float).tiny
# Bins of probabilities for an AUC of cases that come in parts: for each class, and for all, at most.
_BINS, _ALL_BINS, _MOST_LOGIT = 4000, 400_000, 40.0


# ---------------------------------------------------------------------------------------------- regression


def rmse(y: np.ndarray, mean: np.ndarray) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def mae(y: np.ndarray, mean: np.ndarray) -> float:
    """Mean absolute error."""
    return float(np.mean(np.abs(y - mean)))


def r2(y: np.ndarray, mean: np.ndarray) -> float:
    """Share of the variance that is explained; 0 for the best constant, NaN where y is constant."""
    spread = np.sum((y - np.mean(y)) ** 2)
    return float(1.0 - np.sum((y - mean) ** 2) / spread) if spread > 0 else float("nan")


def gaussian_nll(y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> float:
    """Mean negative log-density of y under N(mean, variance)."""
    return float(0.5 * np.mean(np.log(2.0 * np.pi * variance) + (y - mean) ** 2 / variance))


def crps(y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> float:
    r"""Mean continuous ranked probability score of N(mean, variance), in the units of y; 0 is perfect.

    $\sigma\,[z(2\Phi(z) - 1) + 2\varphi(z) - 1/\sqrt\pi]$ with $z = (y - \mu)/\sigma$.
    """
    std = np.sqrt(variance)
    z = (y - mean) / std
    density = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    return float(np.mean(std * (z * (2.0 * ndtr(z) - 1.0) + 2.0 * density - 1.0 / np.sqrt(np.pi))))


def coverage(y: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> float:
    """Share of the cases inside their interval."""
    return float(np.mean((lower <= y) & (y <= upper)))


def width(lower: np.ndarray, upper: np.ndarray) -> float:
    """Mean width of the intervals."""
    return float(np.mean(upper - lower))


def pit(y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Where each y lies in its predictive N(mean, variance), from 0 to 1; uniform if that is calibrated."""
    return np.asarray(ndtr((y - mean) / np.sqrt(variance)))


# ------------------------------------------------------------------------------------------------- classes


def error_rate(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Share of the cases whose most probable class is wrong."""
    return float(np.mean(np.argmax(probabilities, axis=1) != labels))


def class_nll(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Mean negative log-probability of the true class."""
    chosen = probabilities[np.arange(len(labels)), labels.astype(int)]
    return float(-np.mean(np.log(np.maximum(chosen, _TINY))))


def brier(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Mean squared distance between the probabilities and the truth, summed over classes; from 0 to 2."""
    truth = np.eye(probabilities.shape[1])[labels.astype(int)]
    return float(np.mean(np.sum((probabilities - truth) ** 2, axis=1)))


def calibration_error(labels: np.ndarray, probabilities: np.ndarray, n_bins: int = 15) -> float:
    """Expected calibration error: how far confidence and accuracy are apart, over bins of equal width.

    Confidence is the probability of the most probable class. The mean over bins is weighted by their cases.
    """
    return float(np.abs(_gaps(labels, probabilities, n_bins)).sum() / len(labels))


def _gaps(labels: np.ndarray, probabilities: np.ndarray, n_bins: int = 15) -> np.ndarray:
    """Sums of accuracy less confidence in each bin of confidence."""
    confidence = probabilities.max(axis=1)
    right = np.argmax(probabilities, axis=1) == labels
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    return np.bincount(bins, weights=right - confidence, minlength=n_bins)


def auc(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Area under the ROC curve; for more than two classes, the mean over each class against the rest.

    The chance that a case of the class scores higher than one outside it, ties counting half. NaN for classes
    that have no case, or every case; they are left out of the mean.
    """
    n_classes = probabilities.shape[1]
    areas = [_binary_auc(labels == c, probabilities[:, c]) for c in ([1] if n_classes == 2 else range(n_classes))]
    known = [area for area in areas if not np.isnan(area)]
    return float(np.mean(known)) if known else float("nan")


def _binary_auc(is_class: np.ndarray, score: np.ndarray) -> float:
    n_in, n_out = int(np.sum(is_class)), int(np.sum(~is_class))
    if n_in == 0 or n_out == 0:
        return float("nan")
    ranks = rankdata(score)
    return float((ranks[is_class].sum() - 0.5 * n_in * (n_in + 1)) / (n_in * n_out))


def base_rates(labels: np.ndarray, n_classes: int) -> np.ndarray:
    """Share of each class."""
    return np.bincount(labels.astype(int), minlength=n_classes) / len(labels)


def entropy(rates: np.ndarray) -> float:
    """Entropy of class shares in nats: the NLL of always predicting them."""
    present = rates[rates > 0]
    return float(-np.sum(present * np.log(present)))


# -------------------------------------------------------------------------------------------- all together


def regression_scores(y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> dict[str, float]:
    """All regression scores of predictions N(mean, variance); see `NumberTally`."""
    return NumberTally.of(y, mean, variance).scores()


@dataclass(frozen=True)
class NumberTally:
    """What the scores of predicted numbers are made of; tallies of parts of the cases add up to that of all.

    Means over the cases: squared and absolute error, NLL, CRPS, coverage and width of 95% intervals; the mean and
    variance of y.
    """

    n: int
    means: np.ndarray
    y_mean: float
    y_variance: float

    @classmethod
    def of(
        cls,
        y: np.ndarray,
        mean: np.ndarray,
        variance: np.ndarray,
        nll: np.ndarray | None = None,
        interval: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> "NumberTally":
        """Of predictions N(mean, variance); `nll` of each case and `interval` are the true ones where they are not."""
        reach = ndtri(0.975) * np.sqrt(variance)
        lower, upper = (mean - reach, mean + reach) if interval is None else interval
        mean_nll = gaussian_nll(y, mean, variance) if nll is None else float(np.mean(nll))
        means = [rmse(y, mean) ** 2, mae(y, mean), mean_nll, crps(y, mean, variance)]
        means += [coverage(y, lower, upper), width(lower, upper)]
        return cls(len(y), np.array(means), float(np.mean(y)), float(np.var(y)))

    def __add__(self, other: "NumberTally") -> "NumberTally":
        n = self.n + other.n
        share = other.n / n
        apart = other.y_mean - self.y_mean
        return NumberTally(
            n,
            (1.0 - share) * self.means + share * other.means,
            self.y_mean + share * apart,
            (1.0 - share) * self.y_variance + share * other.y_variance + share * (1.0 - share) * apart**2,
        )

    def scores(self) -> dict[str, float]:
        """All scores. `nll_paper` is the NLL in the convention of the paper's tables. `nll_constant` is that of the
        mean and variance of y itself, the score of knowing nothing about the inputs.
        """
        square, absolute, nll, crps, coverage, width = (float(mean) for mean in self.means)
        return {
            "rmse": float(np.sqrt(square)),
            "mae": absolute,
            "r2": 1.0 - square / self.y_variance if self.y_variance > 0 else float("nan"),
            "nll": nll,
            "nll_paper": nll - PAPER_SHIFT,
            "crps": crps,
            "coverage": coverage,
            "width": width,
            "std_constant": float(np.sqrt(self.y_variance)),
            "nll_constant": float(0.5 * (np.log(2.0 * np.pi * max(self.y_variance, _TINY)) + (self.y_variance > 0))),
        }


def class_scores(labels: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """All class scores, with the error and NLL of always predicting the base rates beside them."""
    return ClassTally.of(labels, probabilities).scores() | {"auc": auc(labels, probabilities)}


@dataclass(frozen=True)
class ClassTally:
    """What the scores of predicted classes are made of; tallies of parts of the cases add up to that of all.

    Means over the cases: error, NLL, Brier score; and how many cases there are of each class, the gaps between
    confidence and accuracy, and how many cases in and outside each class have a probability between each two edges.
    Tallies with the same edges add up.
    """

    n: int
    means: np.ndarray
    counts: np.ndarray
    gaps: np.ndarray
    in_bins: np.ndarray
    edges: np.ndarray

    @classmethod
    def of(cls, labels: np.ndarray, probabilities: np.ndarray, edges: np.ndarray | None = None) -> "ClassTally":
        """The edges are those of the first part, or come from these cases."""
        n_classes = probabilities.shape[1]
        means = [score(labels, probabilities) for score in (error_rate, class_nll, brier)]
        counts = np.bincount(labels.astype(int), minlength=n_classes)
        shown = [1] if n_classes == 2 else list(range(n_classes))
        if edges is None:
            edges = np.stack([_edges(probabilities[:, c], min(_BINS, _ALL_BINS // n_classes)) for c in shown])
        in_bins = np.zeros((len(shown), 2, edges.shape[1] + 1), int)
        for place, c in enumerate(shown):
            bins = np.searchsorted(edges[place], probabilities[:, c])
            for side, is_side in enumerate((labels == c, labels != c)):
                in_bins[place, side] = np.bincount(bins[is_side], minlength=in_bins.shape[2])
        return cls(len(labels), np.array(means), counts, _gaps(labels, probabilities), in_bins, edges)

    def __add__(self, other: "ClassTally") -> "ClassTally":
        n = self.n + other.n
        means = (self.n * self.means + other.n * other.means) / n
        in_bins = self.in_bins + other.in_bins
        return ClassTally(n, means, self.counts + other.counts, self.gaps + other.gaps, in_bins, self.edges)

    def scores(self) -> dict[str, float]:
        """All scores; the AUC takes probabilities in one bin for equal."""
        error, nll, brier = (float(mean) for mean in self.means)
        rates = self.counts / self.n
        areas = []
        for inside, outside in self.in_bins:
            if inside.sum() and outside.sum():
                below = np.cumsum(outside) - 0.5 * outside
                areas.append(float(inside @ below) / (float(inside.sum()) * float(outside.sum())))
        return {
            "error": error,
            "nll": nll,
            "brier": brier,
            "ece": float(np.abs(self.gaps).sum() / self.n),
            "auc": float(np.mean(areas)) if areas else float("nan"),
            "base_error": float(1.0 - rates.max()),
            "base_entropy": entropy(rates),
        }


def _edges(probabilities: np.ndarray, n: int) -> np.ndarray:
    """Half of them where these probabilities lie, the others everywhere, for later cases that may be unlike these."""
    own = np.quantile(probabilities, np.linspace(0.0, 1.0, n // 2))
    return np.sort(np.concatenate([own, expit(np.linspace(-_MOST_LOGIT, _MOST_LOGIT, n - n // 2))]))
