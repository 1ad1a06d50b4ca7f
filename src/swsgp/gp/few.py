"""q(f) of a few points on the host: calling a program of JAX takes longer than they do."""

from functools import cached_property

import jax.numpy as jnp
import numpy as np

from swsgp.gp.active import PerPoint
from swsgp.gp.model import SparseGP
from swsgp.gp.on_host import packed
from swsgp.gp.variational import Diagonal, Full
from swsgp.ops import native
from swsgp.ops.compiled import jit
from swsgp.shapes import Array, Float, Int

# Numbers of a full S that are held on the host as well.
_MAX_FULL = 1 << 24


class FewPoints:
    """A model with active sets of each point's own, as plain arrays; in the scope of its precision."""

    def __init__(self, model: SparseGP, kinds: int, theta: np.ndarray):
        self._kinds, self._theta = kinds, theta
        self._inducing, self._mean = np.asarray(model.inducing), np.asarray(model.variational.mean)
        self._variance, self._full = np.zeros_like(self._mean), None
        match model.variational:
            case Diagonal(log_std=log_std):
                self._variance = np.exp(2.0 * np.asarray(log_std))
            case Full() as q:
                self._full = q
        self._offset = 0.0 if model.offset is None else np.asarray(model.offset)

    @classmethod
    def of(cls, model: SparseGP) -> "FewPoints | None":
        """None where the compiled operations are not there, or do not know the model, or S is large."""
        q = model.variational
        if not isinstance(model.active_prediction, PerPoint) or model.landmarks is not None:
            return None
        if isinstance(q, Full) and q.mean.shape[1] * len(model.inducing) ** 2 > _MAX_FULL:
            return None
        found = packed(model, model.active_prediction.n_neighbors)
        return None if found is None else cls(model, *found)

    def __call__(
        self, x: Float[np.ndarray, "B D"], own: Int[np.ndarray, "B H"]
    ) -> tuple[Float[np.ndarray, "B Q"], Float[np.ndarray, "B Q"]]:
        """Mean and variance of q(f) at points with these active sets; not finite where a factor fails."""
        mean, variance, weights = native.latent(
            x, own, self._inducing, self._mean, self._variance, self._theta, self._kinds
        )
        if self._full is not None:
            # aᵀSa = ‖Lᵀa‖².
            half = np.matmul(weights[:, None, None, :], self._lower[:, own].swapaxes(0, 1))
            variance += np.sum(half[:, :, 0] ** 2, axis=2)
        return mean + self._offset, variance

    @cached_property
    def _lower(self) -> Float[np.ndarray, "Q M M"]:
        return np.asarray(_lower(self._full))


@jit
def _lower(q: Full) -> Float[Array, "Q M M"]:
    """All of L, for S = LLᵀ."""
    return q.rows(jnp.arange(q.mean.shape[0]))
