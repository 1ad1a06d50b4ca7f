r"""The local terms: q(f), and the KL of the active inducing variables, for one group.

A *group* is R data points that share H active inducing variables: one point with its H nearest (SWSGP), or a
whole mini-batch with one common set (SWSGP-U, SVGP). With $K = k(Z_w, Z_w)$, $k = k(Z_w, x)$ and $A = K^{-1}k$,

$$ q(f) = N(A^\top m,\; k_{xx} - k^\top A + A^\top S A), \qquad
   2\,\mathrm{KL} = \mathrm{tr}(K^{-1}S) + m^\top K^{-1} m - H + \log|K| - \log|S|, $$

summed over the Q latent functions, which share K. Everything follows from one factorisation,
$W = \mathrm{chol}(K)^{-1}$, so that $K^{-1} = W^\top W$; the gradient is in closed form and needs no other.

Functions here take one group; map them over groups with `jax.vmap`. A faster implementation must keep the
signatures of `local_terms_diagonal` and `local_terms_full`, and is tested against these.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from swsgp.ops import native
from swsgp.ops.products import product
from swsgp.shapes import Array, Float, Scalar


class LocalTerms(NamedTuple):
    """Marginal q(f) of the R points of a group, and the group's KL."""

    mean: Float[Array, "R Q"]
    variance: Float[Array, "R Q"]
    kl: Scalar


@jax.custom_batching.custom_vmap
def inverse_factor(k_zz: Float[Array, "H H"]) -> Float[Array, "H H"]:
    r"""$W = L^{-1}$ for $K = LL^\top$, so that $K^{-1} = W^\top W$; NaN if K is not positive definite.

    Many small matrices at once go to the compiled operation, where there is one.
    """
    return _inverse_factor(k_zz)


@inverse_factor.def_vmap
def _inverse_factors(axis_size: int, in_batched: list[bool], k_zz: Float[Array, "B H H"]) -> tuple[Array, bool]:
    if k_zz.shape[-1] <= native.MAX_SIZE and native.is_available():
        return native.inverse_factors(k_zz), True
    return jax.vmap(_inverse_factor)(k_zz), True


def _inverse_factor(k_zz: Float[Array, "H H"]) -> Float[Array, "H H"]:
    # `symmetrize_input` would average K with its transpose; K is built symmetric.
    chol = jnp.linalg.cholesky(k_zz, symmetrize_input=False)
    return _inverse_lower(chol)


# Sizes of triangular matrices that are faster inverted by halves: on a CPU, and on an H200.
_BY_HALVES = {"cpu": range(9, 17), "other": range(33, 129)}


def _inverse_lower(chol: Float[Array, "H H"]) -> Float[Array, "H H"]:
    """Inverse of a lower triangular matrix; by halves, where that takes about half the time."""
    size, half = chol.shape[-1], chol.shape[-1] // 2
    if size % 2 or size not in _BY_HALVES["cpu" if jax.default_backend() == "cpu" else "other"]:
        return solve_triangular(chol, jnp.eye(size, dtype=chol.dtype), lower=True)
    first, last = jax.vmap(_inverse_lower)(jnp.stack([chol[:half, :half], chol[half:, half:]]))
    below = -product(last, product(chol[half:, :half], first))
    return jnp.block([[first, jnp.zeros_like(first)], [below, last]])


def log_det(cov: Float[Array, "Q H H"]) -> Float[Array, " Q"]:
    r"""$\log|S|$ of positive definite matrices, with the gradient $S^{-1}$ from the same factor.

    Rounding of $S = LL^\top$ may leave none of its smallest eigenvalue: the diagonal grows by as much, before it is
    factored.
    """
    return jax.vmap(_log_det)(cov)


@jax.custom_vjp
def _log_det(cov: Float[Array, "H H"]) -> Scalar:
    return _log_det_forward(cov)[0]


def _log_det_forward(cov):  # type: ignore[no-untyped-def]
    size = len(cov)
    w = inverse_factor(cov * (1.0 + 2 * size * jnp.finfo(cov.dtype).eps * jnp.eye(size, dtype=cov.dtype)))
    return -2.0 * jnp.sum(jnp.log(jnp.diagonal(w))), w


_log_det.defvjp(_log_det_forward, lambda w, g: (g * product(w.T, w),))


# ---------------------------------------------------------------------------------------------- prediction


def weights(w: Float[Array, "H H"], k_zx: Float[Array, "H R"]) -> Float[Array, "H R"]:
    r"""$A = K^{-1} k$."""
    return product(w.T, product(w, k_zx))


def prior_remainder(w: Float[Array, "H H"], k_zx: Float[Array, "H R"], k_xx: Float[Array, " R"]) -> Float[Array, " R"]:
    r"""$k_{xx} - k^\top K^{-1} k$: what the active variables leave open; never negative.

    Rounding alone can bring it to 0, and the gradient is that of the true value, which is positive.
    """
    return jnp.maximum(k_xx - jnp.sum(product(w, k_zx) ** 2, axis=0), 0.0)


def marginals_diagonal(
    a: Float[Array, "H R"], remainder: Float[Array, " R"], mean: Float[Array, "H Q"], variance: Float[Array, "H Q"]
) -> tuple[Float[Array, "R Q"], Float[Array, "R Q"]]:
    """Mean and variance of q(f) from weights and what is left of k(x, x), for S = diag(variance)."""
    return product(a.T, mean), remainder[:, None] + product((a**2).T, variance)


def marginals_full(
    a: Float[Array, "H R"], remainder: Float[Array, " R"], mean: Float[Array, "H Q"], cov: Float[Array, "Q H H"]
) -> tuple[Float[Array, "R Q"], Float[Array, "R Q"]]:
    """Mean and variance of q(f) from weights and what is left of k(x, x), for a full S."""
    spread = jnp.sum(a[None] * jax.vmap(product, (0, None))(cov, a), axis=1).T
    return product(a.T, mean), remainder[:, None] + jnp.maximum(spread, 0.0)


def joint_covariance(
    w: Float[Array, "H H"],
    k_zx: Float[Array, "H R"],
    k_xx: Float[Array, "R R"],
    spread: Float[Array, "Q R R"],
) -> Float[Array, "Q R R"]:
    """Covariance of q(f) over all R points of a group, from aᵀSa; its diagonal is that of the marginals."""
    half = w @ k_zx
    joint = k_xx - half.T @ half + spread
    joint = 0.5 * (joint + jnp.swapaxes(joint, -1, -2))
    short = jnp.maximum(0.0, -jnp.diagonal(joint, axis1=-2, axis2=-1))
    return joint + jnp.eye(joint.shape[-1], dtype=joint.dtype) * short[:, None, :]


# ------------------------------------------------------------------------------------------------ training


def _twice_kl_without_s(w, mean):  # type: ignore[no-untyped-def]
    """The part of 2 KL that does not know S: mᵀK⁻¹m − H + log|K|, summed over the latent functions."""
    n_latent, n_active = mean.shape[1], mean.shape[0]
    log_det_k = -2.0 * jnp.sum(jnp.log(jnp.diagonal(w)))
    return jnp.sum(product(w, mean) ** 2) + n_latent * (log_det_k - n_active)


@jax.custom_vjp
def local_terms_diagonal(
    k_zz: Float[Array, "H H"],
    k_zx: Float[Array, "H R"],
    k_xx: Float[Array, " R"],
    mean: Float[Array, "H Q"],
    variance: Float[Array, "H Q"],
) -> LocalTerms:
    """Local terms for S = diag(variance), one column of variances for each latent function."""
    return _diagonal_forward(k_zz, k_zx, k_xx, mean, variance)[0]


def _diagonal_forward(k_zz, k_zx, k_xx, mean, variance):  # type: ignore[no-untyped-def]
    w = inverse_factor(k_zz)
    f_mean, f_variance = marginals_diagonal(weights(w, k_zx), prior_remainder(w, k_zx, k_xx), mean, variance)
    trace = jnp.sum(jnp.sum(w**2, axis=0)[:, None] * variance)
    kl = 0.5 * (trace + _twice_kl_without_s(w, mean) - jnp.sum(jnp.log(variance)))
    return LocalTerms(f_mean, f_variance, kl), (w, k_zx, mean, variance)


def _diagonal_backward(saved, g):  # type: ignore[no-untyped-def]
    w, k_zx, mean, variance = saved
    precision, a, b, g_d = _common(w, k_zx, mean, g)
    t = product(precision, a * product(variance, g.variance.T))
    psp = product(precision * jnp.sum(variance, axis=1), precision)
    d_variance = product(a**2, g.variance) + 0.5 * g.kl * (jnp.diagonal(precision)[:, None] - 1.0 / variance)
    return *_kernel_gradients(precision, a, b, t, psp, g_d, g), product(a, g.mean) + g.kl * b, d_variance


local_terms_diagonal.defvjp(_diagonal_forward, _diagonal_backward)


@jax.custom_vjp
def local_terms_full(
    k_zz: Float[Array, "H H"],
    k_zx: Float[Array, "H R"],
    k_xx: Float[Array, " R"],
    mean: Float[Array, "H Q"],
    cov: Float[Array, "Q H H"],
    log_det_cov: Float[Array, " Q"],
) -> LocalTerms:
    """Local terms for a full S; its log-determinant comes from outside, where it may be known for nothing."""
    return _full_forward(k_zz, k_zx, k_xx, mean, cov, log_det_cov)[0]


def _full_forward(k_zz, k_zx, k_xx, mean, cov, log_det_cov):  # type: ignore[no-untyped-def]
    w = inverse_factor(k_zz)
    f_mean, f_variance = marginals_full(weights(w, k_zx), prior_remainder(w, k_zx, k_xx), mean, cov)
    trace = jnp.sum(product(w.T, w) * jnp.sum(cov, axis=0))
    kl = 0.5 * (trace + _twice_kl_without_s(w, mean) - jnp.sum(log_det_cov))
    return LocalTerms(f_mean, f_variance, kl), (w, k_zx, mean, cov, log_det_cov)


def _full_backward(saved, g):  # type: ignore[no-untyped-def]
    w, k_zx, mean, cov, log_det_cov = saved
    precision, a, b, g_d = _common(w, k_zx, mean, g)
    cov_a = jax.vmap(product, (0, None))(cov, a)
    t = product(precision, jnp.sum(cov_a * g.variance.T[:, None, :], axis=0))
    psp = product(product(precision, jnp.sum(cov, axis=0)), precision)
    d_cov = jax.vmap(lambda g_q: product(a * g_q, a.T), in_axes=1)(g.variance) + 0.5 * g.kl * precision
    d_log_det = jnp.full_like(log_det_cov, -0.5) * g.kl
    return *_kernel_gradients(precision, a, b, t, psp, g_d, g), product(a, g.mean) + g.kl * b, d_cov, d_log_det


local_terms_full.defvjp(_full_forward, _full_backward)


@jax.custom_vjp
def conditional(
    k_zz: Float[Array, "H H"], k_zx: Float[Array, "H R"], k_xx: Float[Array, " R"], values: Float[Array, "H Q"]
) -> tuple[Float[Array, "R Q"], Float[Array, " R"]]:
    r"""Mean $k^\top K^{-1} y$ and variance $k_{xx} - k^\top K^{-1} k$ of a Gaussian given some of its values."""
    return _conditional_forward(k_zz, k_zx, k_xx, values)[0]


def _conditional_forward(k_zz, k_zx, k_xx, values):  # type: ignore[no-untyped-def]
    w = inverse_factor(k_zz)
    mean = product(weights(w, k_zx).T, values)
    return (mean, prior_remainder(w, k_zx, k_xx)), (w, k_zx, values)


def _conditional_backward(saved, g):  # type: ignore[no-untyped-def]
    w, k_zx, values = saved
    g = LocalTerms(g[0], g[1][:, None], jnp.zeros(()))
    precision, a, b, g_d = _common(w, k_zx, values, g)
    return *_kernel_gradients(precision, a, b, jnp.zeros_like(a), 0.0, g_d, g), product(a, g.mean)


conditional.defvjp(_conditional_forward, _conditional_backward)


def _common(w, k_zx, mean, g):  # type: ignore[no-untyped-def]
    """P = K⁻¹, A = Pk, b = Pm, and the cotangent of k_xx − kᵀA, which every latent function shares."""
    return product(w.T, w), weights(w, k_zx), weights(w, mean), jnp.sum(g.variance, axis=1)


def _kernel_gradients(precision, a, b, t, psp, g_d, g):  # type: ignore[no-untyped-def]
    r"""Gradients with respect to K, k and k_xx.

    With $T = P \sum_q S_q A\,\mathrm{diag}(g_{v,q})$ and sym(X) = X + Xᵀ,
    $dK = -\mathrm{sym}(\tfrac12 A g_\mu b^\top + T A^\top) + A\,\mathrm{diag}(g_d) A^\top
    + \tfrac12 g_{KL} \sum_q (P - P S_q P - b_q b_q^\top)$ and
    $dk = b g_\mu^\top - 2A\,\mathrm{diag}(g_d) + 2T$.
    """
    n_latent = b.shape[1]
    cross = product(0.5 * product(a, g.mean), b.T) + product(t, a.T)
    prior = n_latent * precision - psp - product(b, b.T)
    d_k_zz = product(a * g_d, a.T) - cross - cross.T + 0.5 * g.kl * prior
    d_k_zx = product(b, g.mean.T) - 2.0 * a * g_d + 2.0 * t
    return d_k_zz, d_k_zx, g_d
