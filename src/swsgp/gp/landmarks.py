r"""Landmarks: a few inducing variables that are active for every point, beside each point's own.

With G landmark inputs, $K_G = LL^\top$ their covariance and $\phi(x) = L^{-1} k(G, x)$ the *features* of a point, the
prior is split into two independent parts,

$$ f(x) = \phi(x)^\top v + r(x), \qquad v \sim N(0, I), \qquad
   r \sim \mathrm{GP}(0,\; \tilde k), \quad \tilde k(x, x') = k(x, x') - \phi(x)^\top \phi(x'), $$

whose covariances add up to k. v sees the whole space at once; the inducing variables near a point are values of r and
explain what v leaves. Smooth functions of many columns need this, because there the nearest neighbours are far.
$\tilde k$ is positive definite whatever the jitter in $K_G$, since that only makes $\phi$ smaller.
"""

from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from swsgp.arrays import to_length
from swsgp.errors import NumericalError
from swsgp.gp.covariances import Covariance
from swsgp.ops.compiled import jit
from swsgp.shapes import Array, Float, Scalar

# Relative to the variance.
_JITTER = 1e-6
# Points whose features are computed at once: one compiled program for any number of them.
_AT_ONCE = 1024


class Landmarks(eqx.Module):
    """Landmark inputs and q(v) = N(mean, R Rᵀ), R lower triangular, for each latent function.

    `whitening` (L⁻¹) and `features` (those of the model's inducing inputs) follow from the rest and the covariance.
    They are empty until `prepared`, and not learned.
    """

    inputs: Float[Array, "G D"]
    mean: Float[Array, "G Q"]
    root: Float[Array, "Q G G"]
    whitening: Float[Array, "W W"]
    features: Float[Array, "M W"]

    @classmethod
    def at(cls, inputs: Float[Array, "G D"], n_latent: int) -> "Landmarks":
        """With q(v) equal to the prior."""
        n, dtype = len(inputs), inputs.dtype
        # By way of the host: on the device each shape would compile a program.
        mean, root = np.zeros((n, n_latent), dtype), np.tile(np.eye(n, dtype=dtype), (n_latent, 1, 1))
        empty = np.zeros((0, 0), dtype)
        return cls(inputs, *(jax.device_put(part) for part in (mean, root, empty, empty)))

    def features_of(self, covariance: Covariance, x: Float[Array, "R D"]) -> Float[Array, "R G"]:
        """φ(x) of some points."""
        return covariance.matrix(x, self.inputs) @ self.whitening.T

    def marginals(self, seen: Float[Array, "R G"]) -> tuple[Float[Array, "R Q"], Float[Array, "R Q"]]:
        """Mean and variance of φᵀv at points with these features."""
        return seen @ self.mean, jnp.sum((seen @ self.root) ** 2, axis=-1).T

    def covariance(self, seen: Float[Array, "R G"]) -> Float[Array, "Q R R"]:
        """Joint covariance of φᵀv over all these points."""
        half = seen @ self.root
        return half @ jnp.swapaxes(half, 1, 2)

    def kl(self) -> Scalar:
        """KL(q(v) ‖ N(0, I))."""
        diagonal = jnp.abs(jnp.diagonal(self.root, axis1=1, axis2=2))
        twice = jnp.sum(self.root**2) + jnp.sum(self.mean**2) - self.mean.size - 2.0 * jnp.sum(jnp.log(diagonal))
        return 0.5 * twice

    def of_all(self, covariance: Covariance, x: np.ndarray) -> np.ndarray:
        """φ(x) of any number of rows, on the host."""
        whitening = np.asarray(self.whitening)
        return np.concatenate([k @ whitening.T for k in self._covariances(covariance, x)])

    def prepared(self, covariance: Covariance, inducing: np.ndarray) -> "Landmarks":
        """With the features of these inducing inputs."""
        k = np.concatenate(list(self._covariances(covariance, np.asarray(self.inputs))))
        k = 0.5 * (k + k.T) + _JITTER * np.mean(np.diagonal(k)) * np.eye(len(k), dtype=k.dtype)
        try:
            root = cholesky(k, lower=True)
        except (LinAlgError, ValueError):
            way_out = "take precision='float64', or " if k.dtype == np.float32 else "look for extreme values, or take "
            raise NumericalError(
                f"the covariance of {len(k)} landmarks has no factor in {k.dtype.name}; {way_out}fewer landmarks."
            ) from None
        whitening = solve_triangular(root, np.eye(len(k), dtype=k.dtype), lower=True)
        ready = eqx.tree_at(lambda part: part.whitening, self, jax.device_put(whitening))
        return eqx.tree_at(lambda part: part.features, ready, jax.device_put(ready.of_all(covariance, inducing)))

    def _covariances(self, covariance: Covariance, x: np.ndarray) -> Iterator[np.ndarray]:
        """Of points and the landmarks, some points at a time."""
        for start in range(0, len(x), _AT_ONCE):
            some = x[start : start + _AT_ONCE]
            yield np.asarray(_matrix(covariance, to_length(some, _AT_ONCE), self.inputs))[: len(some)]


_matrix = jit(lambda covariance, x, z: covariance.matrix(x, z))
