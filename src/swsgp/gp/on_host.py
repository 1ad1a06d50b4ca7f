"""Conditionals of points on the host, where the compiled operations need no program of JAX, which would take time."""

import equinox as eqx
import numpy as np
from threadpoolctl import threadpool_limits

from swsgp.arrays import to_power_of_two
from swsgp.gp.model import SparseGP
from swsgp.ops import native
from swsgp.ops.compiled import jit
from swsgp.ops.fused import Conditionals
from swsgp.shapes import Array, Float, Int


def packed(model: SparseGP, n_neighbors: int) -> tuple[int, np.ndarray] | None:
    """The model's covariance as the compiled operations take it; None if they cannot be used.

    In the scope of the model's precision.
    """
    if n_neighbors > native.MAX_SIZE or not native.works_on_host():
        return None
    n_columns = model.inducing.shape[1]
    simple = eqx.filter_eval_shape(model.covariance.simple, n_columns)
    if simple is None:
        return None
    return simple.kinds, np.asarray(_packed(model.covariance, model.jitter, n_columns=n_columns))


_packed = jit(
    lambda covariance, jitter, n_columns: covariance.simple(n_columns).packed(0.0, jitter), constant="n_columns"
)


class HostConditionals:
    """Conditionals of points with active sets of their own, for a model with its landmarks prepared."""

    def __init__(self, model: SparseGP, n_neighbors: int):
        self._model, self._packed = model, packed(model, n_neighbors)
        self._inducing = np.asarray(model.inducing)
        none = np.zeros((len(self._inducing), 0), self._inducing.dtype)
        self._features = none if model.landmarks is None else np.asarray(model.landmarks.features)[: len(none)]

    @property
    def are_compiled(self) -> bool:
        """Whether the compiled operations know the model."""
        return self._packed is not None

    def __call__(
        self,
        x: Float[np.ndarray, "B D"],
        index: Int[np.ndarray, "B H"],
        seen: Float[np.ndarray, "B G"],
        *,
        whole: bool = True,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Weights, remainders, and for the `whole` system K⁻¹ and log|K|; `seen` are the landmarks' features."""
        if self._packed is not None:
            kinds, theta = self._packed
            return native.systems(x, index, self._inducing, theta, kinds, self._features, seen, whole=whole)
        # Threads inside the solves of small matrices hinder each other.
        with threadpool_limits(1, "blas"):
            found = _conditionals(self._model, *map(to_power_of_two, (x, index, seen)), whole=whole)
            a, remainder, precision, log_det = (np.asarray(part)[: len(x)] for part in found)
            return a, remainder, precision, log_det


def _own_systems(model: SparseGP, x: Array, index: Array, seen: Array, whole: bool) -> Conditionals:
    return model.own_system(x, index, seen, whole=whole)


_conditionals = jit(_own_systems, constant="whole")
