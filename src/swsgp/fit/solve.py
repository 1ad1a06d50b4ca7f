r"""q(u) in closed form: what the bound has as its maximum over m and a diagonal S, for fixed hyper-parameters.

With $a_n = K_{w_n}^{-1} k_n$ the bound is, up to what does not depend on q(u),

$$ \sum_n E_{N(\mu_n, v_n)} \log p(y_n \mid f)
   - \tfrac12 \Big[ m^\top P m + \sum_j P_{jj} s_j - \tfrac{\kappa}{N} \sum_j c_j \log s_j \Big],
   \qquad \mu_n = a_n^\top m, \quad v_n = d_n + \sum_j a_{nj}^2 s_j, $$

where $P = \frac{\kappa}{N} \sum_n K_{w_n}^{-1}$, each block in its own rows and columns, $d_n = k_{nn} - k_n^\top a_n$,
and $c_j$ is how many rows use inducing variable j. For weights $\omega_n$ and targets $t_n$ (a Gaussian likelihood
has $\omega = 1/\sigma^2$ and $t = y$) the maximum is at

$$ (P + A^\top \mathrm{diag}(\omega) A)\, m = A^\top (\omega t), \qquad
   s_j = \frac{\kappa c_j / N}{P_{jj} + \sum_n \omega_n a_{nj}^2} . $$

A has H numbers a row and P is sparse: one pass over the data makes both, and everything after it is sparse products.
"""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg

from swsgp.arrays import to_power_of_two
from swsgp.errors import SettingError
from swsgp.gp.active import PerPoint, SearchInducing
from swsgp.gp.likelihoods import Gaussian, Likelihood
from swsgp.gp.model import SparseGP
from swsgp.ops.compiled import jit
from swsgp.ops.local import inverse_factor, prior_remainder, weights
from swsgp.ops.products import product
from swsgp.shapes import Array, Float

# Numbers of K⁻¹ that are held at once.
_MAX_BLOCKS = 1 << 22
# Relative size of the residual at which a solve ends, and how many iterations it takes at most.
_TOLERANCE = 1e-4
_MAX_ITERATIONS = 200
# The gain in nats a row below which a pass is the last, how many there are at most, and the smallest step.
_ENOUGH = 1e-4
_MAX_PASSES = 20
_LEAST_RATE = 0.01
# Rows times latent functions whose derivatives are taken at once.
_MAX_DERIVATIVES = 1 << 17
# Every row has some weight; Student's t would give one far out a negative one.
_LEAST_WEIGHT = 1e-6


@dataclass(frozen=True)
class System:
    """What one pass over the data makes of them; see the formulas of this module.

    `prior` is the upper triangle of Σ K⁻¹, so that P is κ/N times as much; `log_det` is Σ log|K|.
    """

    a: sparse.csr_matrix
    remainder: Float[np.ndarray, " N"]
    prior: sparse.csr_matrix
    log_det: float

    @cached_property
    def squares(self) -> sparse.csr_matrix:
        return self.a.multiply(self.a).tocsr()

    @cached_property
    def prior_diagonal(self) -> Float[np.ndarray, " M"]:
        return self.prior.diagonal()

    @cached_property
    def counts(self) -> Float[np.ndarray, " M"]:
        """How many rows use each inducing variable."""
        return np.bincount(self.a.indices, minlength=self.a.shape[1]).astype(np.float64)

    def prior_times(self, v: np.ndarray) -> np.ndarray:
        """(Σ K⁻¹) v, from its upper triangle."""
        diagonal = self.prior_diagonal if v.ndim == 1 else self.prior_diagonal[:, None]
        return self.prior @ v + self.prior.T @ v - diagonal * v


def build(model: SparseGP, x: Float[np.ndarray, "N D"]) -> System:
    """One pass over the rows, in blocks, for a model whose rows have active sets of their own."""
    n_rows, n_inducing, n_neighbors = len(x), len(model.inducing), n_neighbors_of(model)
    index = np.sort(SearchInducing(model.metric, np.asarray(model.inducing))(x, n_neighbors), axis=1)
    first, second = np.triu_indices(n_neighbors)
    size = 1 << (max(1, _MAX_BLOCKS // n_neighbors**2).bit_length() - 1)
    a, remainder = np.empty((n_rows, n_neighbors)), np.empty(n_rows)
    prior = sparse.csr_matrix((n_inducing, n_inducing))
    log_det = 0.0
    for start in range(0, n_rows, size):
        own = index[start : start + size]
        n = len(own)
        block = (np.asarray(part)[:n] for part in _blocks(model, *map(to_power_of_two, (x[start : start + size], own))))
        a[start : start + n], remainder[start : start + n], k_inverse, log_dets = block
        place = own[:, first].ravel(), own[:, second].ravel()
        prior = prior + sparse.coo_matrix((k_inverse[:, first, second].ravel(), place), prior.shape).tocsr()
        log_det += float(log_dets.sum())
    starts = np.arange(n_rows + 1) * n_neighbors
    return System(
        sparse.csr_matrix((a.ravel(), index.ravel(), starts), (n_rows, n_inducing)), remainder, prior, log_det
    )


def n_neighbors_of(model: SparseGP) -> int:
    """H, for a model whose rows have active sets of their own."""
    if not isinstance(model.active, PerPoint):
        raise SettingError("q(u) is solved for where each point has its own active set; train other models by steps.")
    return model.active.n_neighbors


@jit
def _blocks(model: SparseGP, x: Array, index: Array) -> tuple[Array, Array, Array, Array]:
    """a, d, K⁻¹ and log|K| of each row."""

    def one(point: Array, own: Array) -> tuple[Array, Array, Array, Array]:
        w = inverse_factor(model.k_zz(own))
        k_zx = model.covariance.matrix(model.inducing[own], point[None])
        remainder = prior_remainder(w, k_zx, model.covariance.diagonal(point[None]))
        return weights(w, k_zx)[:, 0], remainder[0], product(w.T, w), -2.0 * jnp.sum(jnp.log(jnp.diagonal(w)))

    return jax.vmap(one)(x, index)


def solve(
    system: System,
    kl_scale: float,
    omega: Float[np.ndarray, " N"],
    omega_t: Float[np.ndarray, " N"],
    start: Float[np.ndarray, " M"],
) -> tuple[Float[np.ndarray, " M"], Float[np.ndarray, " M"]]:
    """m and s for weights ω and products ω·t, by conjugate gradients with the diagonal as preconditioner."""
    scale = kl_scale / system.a.shape[0]
    # A variable that no row uses keeps its prior mean, which is 0.
    diagonal = np.maximum(scale * system.prior_diagonal + system.squares.T @ omega, 1e-300)
    shape = (len(start), len(start))
    matrix = LinearOperator(
        shape,
        lambda v: scale * system.prior_times(v) + system.a.T @ (omega * (system.a @ v)),
        dtype=np.float64,
    )
    inverse = LinearOperator(shape, lambda v: v / diagonal, dtype=np.float64)
    mean, _ = cg(matrix, system.a.T @ omega_t, x0=start, rtol=_TOLERANCE, maxiter=_MAX_ITERATIONS, M=inverse)
    return mean, scale * system.counts / diagonal


# ------------------------------------------------------------------------------------------------ any likelihood


@dataclass(frozen=True)
class Solution:
    """m and s, and the bound in nats for all rows after each pass."""

    mean: Float[np.ndarray, "M Q"]
    variance: Float[np.ndarray, "M Q"]
    bounds: tuple[float, ...]


@dataclass(frozen=True)
class _At:
    """The bound at some q(u), and what leads on from there: the slopes and weights of each row."""

    mean: np.ndarray
    variance: np.ndarray
    bound: float
    omega: np.ndarray
    omega_t: np.ndarray


def maximise(
    system: System,
    likelihood: Likelihood,
    offset: Float[np.ndarray, " Q"],
    y: Float[np.ndarray, " N"],
    kl_scale: float,
    start: Solution | None = None,
) -> Solution:
    r"""The maximum of the bound over q(u), by natural-gradient (Newton) steps.

    Each step puts $\omega_n = -2\,\partial E_n / \partial v_n$ and $\omega_n t_n = \omega_n a_n^\top m +
    \partial E_n / \partial \mu_n$ in the place of a Gaussian likelihood's. A step that does not raise the bound is
    halved: q(u) then comes from weights half way between the old and the new. For a Gaussian likelihood the first
    step is the last.
    """
    unused = system.counts == 0
    if start is None:
        mean = np.zeros((system.a.shape[1], likelihood.n_latent))
        variance = np.where(unused, 1.0, system.counts / np.where(unused, 1.0, system.prior_diagonal))
        start = Solution(mean, np.tile(variance[:, None], (1, likelihood.n_latent)), ())
    now = _look(system, likelihood, offset, y, kl_scale, start.mean, start.variance)
    omega, omega_t = np.zeros_like(now.omega), np.zeros_like(now.omega)
    bounds = [now.bound]
    for _ in range(_MAX_PASSES):
        rate, ahead = 1.0, None
        while rate >= _LEAST_RATE:
            omega_between, omega_t_between = (
                old + rate * (new - old) for old, new in ((omega, now.omega), (omega_t, now.omega_t))
            )
            columns = [
                solve(system, kl_scale, *column)
                for column in zip(omega_between.T, omega_t_between.T, now.mean.T, strict=True)
            ]
            mean, variance = (np.stack(part, axis=1) for part in zip(*columns, strict=True))
            variance[unused] = start.variance[unused]
            ahead = _look(system, likelihood, offset, y, kl_scale, mean, variance)
            if ahead.bound >= now.bound:
                break
            rate, ahead = 0.5 * rate, None
        if ahead is None:
            break
        gain = ahead.bound - now.bound
        now, omega, omega_t = ahead, omega_between, omega_t_between
        bounds.append(now.bound)
        if isinstance(likelihood, Gaussian) or gain < _ENOUGH * len(y):
            break
    return Solution(now.mean, now.variance, tuple(bounds))


def _look(
    system: System,
    likelihood: Likelihood,
    offset: np.ndarray,
    y: np.ndarray,
    kl_scale: float,
    mean: np.ndarray,
    variance: np.ndarray,
) -> _At:
    latent = system.a @ mean
    spread = system.remainder[:, None] + system.squares @ variance
    expected, slope, omega = _derivatives(likelihood, y, latent + offset, spread)
    used = system.counts > 0
    twice_kl = (
        np.sum(mean * system.prior_times(mean))
        + np.sum(system.prior_diagonal[:, None] * variance)
        - np.sum(system.counts[used, None] * np.log(variance[used]))
        + likelihood.n_latent * (system.log_det - system.a.nnz)
    )
    bound = float(np.sum(expected) - 0.5 * kl_scale / len(y) * twice_kl)
    return _At(mean, variance, bound, omega, omega * latent + slope)


def _derivatives(
    likelihood: Likelihood, y: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> tuple[np.ndarray, ...]:
    """E log p of each row, its slope in the mean, and its weights, in blocks."""
    size = _MAX_DERIVATIVES // likelihood.n_latent
    parts = []
    for start in range(0, len(y), size):
        block = [part[start : start + size] for part in (y, mean, variance)]
        parts.append(
            [np.asarray(part)[: len(block[0])] for part in _expected(likelihood, *map(to_power_of_two, block))]
        )
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


@jit
def _expected(likelihood: Likelihood, y: Array, mean: Array, variance: Array) -> tuple[Array, Array, Array]:
    def one(y: Array, mean: Array, variance: Array) -> tuple[Array, Array, Array]:
        value, (slope, bend) = jax.value_and_grad(likelihood.expected_log_prob, argnums=(1, 2))(y, mean, variance)
        return value, slope, jnp.maximum(-2.0 * bend, _LEAST_WEIGHT)

    return jax.vmap(one)(y, mean, variance)
