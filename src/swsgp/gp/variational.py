"""q(u) = N(m, S) over all M inducing variables, and how to take the part of it that is active.

Q latent functions have a mean and a covariance each.
"""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from swsgp.ops import native
from swsgp.ops.compiled import one_at_a_time
from swsgp.ops.local import (
    LocalTerms,
    local_terms_diagonal,
    local_terms_full,
    log_det,
    marginals_diagonal,
)
from swsgp.ops.products import gram, product
from swsgp.ops.roots import products
from swsgp.shapes import Array, Float, Int

Index = Int[Array, " H"]
Marginals = tuple[Float[Array, "R Q"], Float[Array, "R Q"]]


class Variational(eqx.Module):
    """A Gaussian over the inducing variables."""

    mean: eqx.AbstractVar[Float[Array, "M Q"]]

    @abc.abstractmethod
    def covariance(self, index: Index) -> Float[Array, "Q H H"]:
        """S restricted to some inducing variables."""

    @abc.abstractmethod
    def of_points(self, index: Int[Array, "B H"]) -> Float[Array, "B ..."]:
        """S restricted to the inducing variables of each point: variances (B, H, Q), or covariances (B, Q, H, H)."""

    @abc.abstractmethod
    def terms(
        self, index: Index, k_zz: Float[Array, "H H"], k_zx: Float[Array, "H R"], k_xx: Float[Array, " R"]
    ) -> LocalTerms:
        """Local terms of one group; see `swsgp.ops.local`."""

    @abc.abstractmethod
    def marginals(self, index: Index, a: Float[Array, "H R"], remainder: Float[Array, " R"]) -> Marginals:
        """Mean and variance of q(f) for one group, from a = K⁻¹k and what is left of k(x, x)."""

    @abc.abstractmethod
    def spread(self, index: Index, a: Float[Array, "H R"]) -> Float[Array, "Q R R"]:
        """aᵀSa: what the uncertainty of u adds to the joint covariance of one group."""


class Diagonal(Variational):
    """S = diag(exp(2 log_std)): 2 M Q numbers, and the choice when M is large."""

    mean: Float[Array, "M Q"]
    log_std: Float[Array, "M Q"]

    @classmethod
    def start(cls, n_inducing: int, n_latent: int, std: float) -> "Diagonal":
        """Mean 0 and the same standard deviation everywhere."""
        shape = (n_inducing, n_latent)
        return cls(jax.device_put(np.zeros(shape)), jax.device_put(np.full(shape, math.log(std))))

    def variance(self, index: Int[Array, "..."]) -> Float[Array, "... Q"]:
        return jnp.exp(2.0 * self.log_std[index])

    def covariance(self, index: Index) -> Float[Array, "Q H H"]:
        return jax.vmap(jnp.diag, in_axes=1)(self.variance(index))

    def of_points(self, index: Int[Array, "B H"]) -> Float[Array, "B H Q"]:
        return self.variance(index)

    def terms(
        self, index: Index, k_zz: Float[Array, "H H"], k_zx: Float[Array, "H R"], k_xx: Float[Array, " R"]
    ) -> LocalTerms:
        return local_terms_diagonal(k_zz, k_zx, k_xx, self.mean[index], self.variance(index))

    def marginals(self, index: Index, a: Float[Array, "H R"], remainder: Float[Array, " R"]) -> Marginals:
        return marginals_diagonal(a, remainder, self.mean[index], self.variance(index))

    def spread(self, index: Index, a: Float[Array, "H R"]) -> Float[Array, "Q R R"]:
        return jnp.einsum("hr,hq,hs->qrs", a, self.variance(index), a)


class Full(Variational):
    r"""$S = LL^\top$ with L lower triangular; $S_w = L_w L_w^\top$ from the H active *rows* of L.

    `lower` holds the rows under the diagonal one after the other, row i from position i(i-1)/2 on: half of the
    memory of a square array, and half of the optimiser's work. It is folded into lines of 128, which the optimiser
    updates in parallel, and padded so that M numbers can be sliced from the start of any row.
    """

    mean: Float[Array, "M Q"]
    log_diagonal: Float[Array, "M Q"]
    lower: Float[Array, "Q P 128"]

    @classmethod
    def start(cls, n_inducing: int, n_latent: int, std: float) -> "Full":
        """Mean 0 and S = std² I."""
        zero = jnp.zeros((n_inducing, n_latent))
        lower = jnp.zeros((n_latent, n_inducing * (n_inducing - 1) // 2 // 128 + 1, 128))
        return cls(zero, zero + math.log(std), lower)

    def rows(self, index: Index) -> Float[Array, "Q H M"]:
        """Rows of L, all M columns."""
        n_inducing, n_latent = self.mean.shape
        lower = self.lower.reshape(n_latent, -1)
        column = jnp.arange(n_inducing)

        def row(i: Array, own: Array) -> Array:
            below = jax.lax.dynamic_slice_in_dim(lower, i * (i - 1) // 2, n_inducing, axis=1)
            return jnp.where(column < i, below, jnp.where(column == i, own[:, None], 0.0))

        return jax.vmap(row, out_axes=1)(index, jnp.exp(self.log_diagonal[index]))

    def covariance(self, index: Index) -> Float[Array, "Q H H"]:
        return jax.vmap(gram)(self.rows(index))

    def of_points(self, index: Int[Array, "B H"]) -> Float[Array, "B Q H H"]:
        if not native.is_available():
            return jax.vmap(self.covariance)(index)
        return products(self.lower.reshape(len(self.lower), -1), jnp.exp(self.log_diagonal), index)

    def terms(
        self, index: Index, k_zz: Float[Array, "H H"], k_zx: Float[Array, "H R"], k_xx: Float[Array, " R"]
    ) -> LocalTerms:
        cov = self.covariance(index)
        if index.shape[0] == self.mean.shape[0]:
            # With every variable active L is square, and the determinant of S is that of its diagonal.
            log_det_cov = 2.0 * jnp.sum(self.log_diagonal, axis=0)
        else:
            log_det_cov = log_det(cov)
            k_zz = one_at_a_time(k_zz, before=log_det_cov)
        return local_terms_full(k_zz, k_zx, k_xx, self.mean[index], cov, log_det_cov)

    def marginals(self, index: Index, a: Float[Array, "H R"], remainder: Float[Array, " R"]) -> Marginals:
        return product(a.T, self.mean[index]), remainder[:, None] + jnp.sum(self._half(index, a) ** 2, axis=1).T

    def spread(self, index: Index, a: Float[Array, "H R"]) -> Float[Array, "Q R R"]:
        half = self._half(index, a)
        return jnp.swapaxes(half, 1, 2) @ half

    def _half(self, index: Index, a: Float[Array, "H R"]) -> Float[Array, "Q M R"]:
        """Lᵀa, with which aᵀSa takes M numbers a row where S itself would take M² of them."""
        return jnp.einsum("qhm,hr->qmr", self.rows(index), a)
