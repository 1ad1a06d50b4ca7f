"""q(f) of a few points on the host: calling a program of JAX takes longer than they do."""

import equinox as eqx
import numpy as np

from swsgp.gp.active import PerPoint
from swsgp.gp.model import SparseGP
from swsgp.gp.variational import Diagonal
from swsgp.ops import native
from swsgp.ops.compiled import jit
from swsgp.shapes import Float, Int


class FewPoints:
    """A model with active sets of each point's own and a diagonal S, as plain arrays; in the scope of its precision."""

    def __init__(self, model: SparseGP, kinds: int, theta: np.ndarray):
        assert isinstance(model.variational, Diagonal)
        self._kinds, self._theta = kinds, theta
        self._inducing, self._mean = np.asarray(model.inducing), np.asarray(model.variational.mean)
        self._variance = np.exp(2.0 * np.asarray(model.variational.log_std))
        self._offset = 0.0 if model.offset is None else np.asarray(model.offset)

    @classmethod
    def of(cls, model: SparseGP) -> "FewPoints | None":
        """None where the compiled operations are not there, or do not know the model."""
        match model.active_prediction, model.variational:
            case PerPoint(n_neighbors), Diagonal() if n_neighbors <= native.MAX_SIZE and native.is_available():
                simple = eqx.filter_eval_shape(model.covariance.simple, model.inducing.shape[1])
            case _:
                return None
        if simple is None or model.landmarks is not None:
            return None
        theta = _packed(model.covariance, model.jitter, n_columns=model.inducing.shape[1])
        return cls(model, simple.kinds, np.asarray(theta))

    def __call__(
        self, x: Float[np.ndarray, "B D"], own: Int[np.ndarray, "B H"]
    ) -> tuple[Float[np.ndarray, "B Q"], Float[np.ndarray, "B Q"]]:
        """Mean and variance of q(f) at points with these active sets; not finite where a factor fails."""
        mean, variance = native.latent(x, own, self._inducing, self._mean, self._variance, self._theta, self._kinds)
        return mean + self._offset, variance


_packed = jit(
    lambda covariance, jitter, n_columns: covariance.simple(n_columns).packed(0.0, jitter), constant="n_columns"
)
