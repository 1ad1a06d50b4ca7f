"""Which inducing variables are active? The one choice that tells SWSGP, SWSGP-U and SVGP apart.

| active      | training                                      | prediction                            |
|-------------|-----------------------------------------------|---------------------------------------|
| `PerPoint`  | the H nearest of each point                   | the H nearest of each point           |
| `Union`     | one set of a fixed size for a mini-batch      | the union of each point's H nearest   |
| `All`       | all M                                         | all M                                 |

"Nearest" means the largest covariance k(x, z), as in the paper. For a stationary covariance that is the smallest
distance in units of its lengthscales, which matrix products and trees find fast; beside a linear one that distance
decides alone.
"""

from dataclasses import dataclass
from numbers import Integral

import jax
import jax.numpy as jnp
import numpy as np

from swsgp.errors import SettingError
from swsgp.gp.covariances import Covariance
from swsgp.ops.compiled import jit
from swsgp.ops.nearest import Search, in_blocks, largest, nearest, union
from swsgp.shapes import Array, Float, Int


@dataclass(frozen=True)
class PerPoint:
    """Each data point has its own active set: its `n_neighbors` nearest inducing inputs (SWSGP)."""

    n_neighbors: int

    def check(self, n_inducing: int) -> None:
        _check_count("n_neighbors", self.n_neighbors, n_inducing)


@dataclass(frozen=True)
class Union:
    """One active set for all points of a mini-batch (SWSGP-U).

    In training it has `n_active` members: first the nearest of every point, then every point's second nearest, and
    so on until it is full. In prediction it is the union of the `n_neighbors` nearest of the points asked for,
    so a prediction depends on the points it is made with.
    """

    n_active: int
    n_neighbors: int

    def check(self, n_inducing: int) -> None:
        _check_count("n_active", self.n_active, n_inducing)
        _check_count("n_neighbors", self.n_neighbors, n_inducing)


@dataclass(frozen=True)
class All:
    """Every inducing variable is active for every point (SVGP)."""

    def check(self, n_inducing: int) -> None:
        """Any number of inducing points will do."""


Active = PerPoint | Union | All


def _check_count(name: str, count: int, n_inducing: int) -> None:
    if not (isinstance(count, Integral) and 1 <= count <= n_inducing):
        raise SettingError(
            f"{name} must be a whole number between 1 and n_inducing={n_inducing}, got {count}; "
            f"lower {name} or raise n_inducing."
        )


def nearest_inducing(metric: Covariance, x: Float[Array, "B D"], z: Float[Array, "M D"], n: int) -> Int[Array, "B {n}"]:
    """Indices of the n inducing inputs nearest to each point, nearest first. Runs on the device, has no gradient."""
    metric, x, z = jax.lax.stop_gradient((metric, x, z))
    factors = metric.metric(x.shape[1])
    if factors is None:
        return largest(metric.local().matrix(x, z), n)
    return nearest(x, z, factors, n)


def active_set(
    active: Active, metric: Covariance, x: Float[Array, "B D"], z: Float[Array, "M D"]
) -> Int[Array, "B H"] | Int[Array, " H"]:
    """The active inducing variables of a training batch: a row for each point, or one set for all of them."""
    n_inducing = z.shape[0]
    match active:
        case PerPoint(n_neighbors):
            return nearest_inducing(metric, x, z, n_neighbors)
        case Union(n_active=n_active):
            return union(nearest_inducing(metric, x, z, n_active), n_inducing, n_active)
        case All():
            return jnp.arange(n_inducing)


class SearchInducing:
    """As `nearest_inducing`, from the host, for any number of points in bounded memory; see `Search`."""

    def __init__(self, metric: Covariance, z: np.ndarray, *, n_approximate: int = 0):
        self._metric, self._z = metric, z
        factors = factors_of(metric, n_columns=z.shape[1])
        self._search = None if factors is None else Search(z, np.asarray(factors), n_approximate=n_approximate)

    def __call__(self, x: np.ndarray, n: int) -> np.ndarray:
        """int32 indices of shape (len(x), n)."""
        if self._search is not None:
            return self._search(x, n)
        z = jnp.asarray(self._z)
        return in_blocks(lambda block: _nearest_inducing(self._metric, block, z, n), x, len(self._z))


_nearest_inducing = jit(nearest_inducing, constant="n")
# What columns are multiplied by in the metric of a covariance: one program in the place of a few small ones.
factors_of = jit(lambda metric, n_columns: metric.metric(n_columns), constant="n_columns")
