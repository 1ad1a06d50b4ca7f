r"""q(u) in closed form: what the bound has as its maximum over m and a diagonal S, for fixed hyper-parameters.

With $a_n = K_{w_n}^{-1} k_n$ and the landmarks' features $\phi_n$ (none, if there are no landmarks) the bound is, up to
what does not depend on q,

$$ \sum_n E_{N(\mu_n, v_n)} \log p(y_n \mid f)
   - \tfrac12 \Big[ m^\top P m + \sum_j P_{jj} s_j - \tfrac{\kappa}{N} \sum_j c_j \log s_j \Big]
   - \tfrac12 \big[ |b|^2 + \mathrm{tr}\, C - \log|C| \big], $$

$$ \mu_n = \phi_n^\top b + a_n^\top m, \qquad v_n = d_n + \phi_n^\top C \phi_n + \sum_j a_{nj}^2 s_j, $$

where $P = \frac{\kappa}{N} \sum_n K_{w_n}^{-1}$, each block in its own rows and columns, $d_n = k_{nn} - k_n^\top a_n$,
$c_j$ is how many rows use inducing variable j, and q(v) = N(b, C). For weights $\omega_n$ and targets $t_n$ (a Gaussian
likelihood has $\omega = 1/\sigma^2$ and $t = y$) the maximum is at

$$ (I + \Phi^\top \Omega \Phi)\, b + \Phi^\top \Omega A\, m = \Phi^\top \Omega t, \qquad
   A^\top \Omega \Phi\, b + (P + A^\top \Omega A)\, m = A^\top \Omega t, $$

$$ C = (I + \Phi^\top \Omega \Phi)^{-1}, \qquad s_j = \frac{\kappa c_j / N}{P_{jj} + \sum_n \omega_n a_{nj}^2} . $$

A has H numbers a row and P is sparse: one pass over the data makes both, and everything after it is sparse products.
A full S has no such form where each row has its own active set: there the logarithms of many overlapping determinants
are added up. Landmarks, which are active for every row, have a full C.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from swsgp import processes
from swsgp.arrays import to_length
from swsgp.errors import FitWarning, NumericalError
from swsgp.fit.system import System
from swsgp.gp.likelihoods import Gaussian, Likelihood, StudentT
from swsgp.ops.compiled import jit
from swsgp.shapes import Array, Float

# Relative size of the residual at which a solve ends, and how many iterations it takes at most.
TOLERANCE = 1e-5
MAX_ITERATIONS = 1000
# The gain in nats a row below which a pass is the last, how many there are at most, and the smallest step.
ENOUGH = 1e-4
MAX_PASSES = 20
LEAST_RATE = 0.01
# Rows times latent functions whose derivatives are taken at once: one compiled program for any number of rows.
_AT_ONCE = 1 << 13
# Every row has some weight.
_LEAST_WEIGHT = 1e-6


@dataclass(frozen=True)
class Solution:
    """b, C, m and s for each latent function, and the bound in nats for all rows after each pass."""

    overall_mean: Float[np.ndarray, "G Q"]
    overall_cov: Float[np.ndarray, "Q G G"]
    mean: Float[np.ndarray, "M Q"]
    variance: Float[np.ndarray, "M Q"]
    bounds: tuple[float, ...] = ()


def solve(
    system: System,
    kl_scale: float,
    omega: Float[np.ndarray, "N Q"],
    omega_t: Float[np.ndarray, "N Q"],
    start: Solution,
) -> Solution:
    """The maximum for weights ω and products ω·t, by conjugate gradients; the diagonal and C precondition them."""
    columns = [
        _solve_one(system, kl_scale, omega[:, q], omega_t[:, q], start.overall_mean[:, q], start.mean[:, q])
        for q in range(omega.shape[1])
    ]
    overall_mean, overall_cov, mean, variance = zip(*columns, strict=True)
    # A variable that no row uses keeps its prior.
    spread = np.where(system.counts[:, None] > 0, np.stack(variance, axis=1), start.variance)
    return Solution(np.stack(overall_mean, axis=1), np.stack(overall_cov), np.stack(mean, axis=1), spread)


def _solve_one(
    system: System, kl_scale: float, omega: np.ndarray, omega_t: np.ndarray, overall: np.ndarray, mean: np.ndarray
) -> tuple[np.ndarray, ...]:
    scale, n = kl_scale / system.n_rows, len(overall)
    phi, a = system.features, system.a
    cov = np.linalg.inv(np.eye(n) + system.total(phi.T @ (omega[:, None] * phi)))
    diagonal = np.maximum(scale * system.prior_diagonal + system.total(system.squares.T @ omega), 1e-300)

    def times(v: np.ndarray) -> np.ndarray:
        reweighted, of_variables = system.reweighted(omega, phi @ v[:n], v[n:])
        own = np.concatenate([phi.T @ reweighted, scale * system.prior_times(v[n:]) + of_variables])
        return system.total(own) + np.pad(v[:n], (0, len(own) - n))

    def before(v: np.ndarray) -> np.ndarray:
        return np.concatenate([cov @ v[:n], v[n:] / diagonal])

    right = system.total(np.concatenate([phi.T @ omega_t, a.T @ omega_t]))
    found = conjugate_gradients(times, right, np.concatenate([overall, mean]), before, system.shared)
    return found[:n], cov, found[n:], scale * system.counts / diagonal


Map = Callable[[np.ndarray], np.ndarray]


def conjugate_gradients(times: Map, right: np.ndarray, start: np.ndarray, before: Map, shared: bool) -> np.ndarray:
    """The solution of a symmetric system, preconditioned by `before`.

    If `times` takes all processes the first one leads: the others multiply what it asks for, until it is done.
    """
    leads = shared and processes.count() > 1
    if leads and not processes.is_first():
        while (asked := processes.agreed(np.zeros(len(right) + 1)))[-1]:
            times(asked[:-1])
        return asked[:-1]

    def product(v: np.ndarray) -> np.ndarray:
        return times(processes.agreed(np.append(v, 1.0))[:-1]) if leads else times(v)

    shape = (len(right),) * 2
    found, n_wanting = cg(
        LinearOperator(shape, product, dtype=np.float64),
        right,
        x0=start,
        rtol=TOLERANCE,
        maxiter=MAX_ITERATIONS,
        M=LinearOperator(shape, before, dtype=np.float64),
    )
    if leads:
        processes.agreed(np.append(found, 0.0))
    if n_wanting:
        _warn_not_converged()
    solution: np.ndarray = found
    return solution


def _warn_not_converged() -> None:
    warnings.warn(
        f"the solve for q(u) has not converged in {MAX_ITERATIONS} iterations; predictions may be poor. "
        "Many rows may be nearly equal: fewer inducing points help.",
        FitWarning,
        stacklevel=4,
    )


# ------------------------------------------------------------------------------------------------ any likelihood


@dataclass(frozen=True)
class _At:
    """The bound at some q, and what leads on from there: the slopes and weights of each row."""

    solution: Solution
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
    r"""The maximum of the bound over q, by natural-gradient (Newton) steps.

    Each step puts $\omega_n = -2\,\partial E_n / \partial v_n$ and $\omega_n t_n = \omega_n \mu_n +
    \partial E_n / \partial \mu_n$ in the place of a Gaussian likelihood's. A step that does not raise the bound is
    halved: q then comes from weights half way between the old and the new. For a Gaussian likelihood the first step is
    the last.
    """
    start = _prior(system, likelihood.n_latent) if start is None else start
    now = _look(system, likelihood, offset, y, kl_scale, start)
    omega, omega_t = np.zeros_like(now.omega), np.zeros_like(now.omega)
    bounds = [checked_bound(now.bound)]
    for _ in range(MAX_PASSES):
        rate, ahead = 1.0, None
        if system.shared:
            processes.stop_if_interrupted()
        while rate >= LEAST_RATE:
            omega_between, omega_t_between = (
                old + rate * (new - old) for old, new in ((omega, now.omega), (omega_t, now.omega_t))
            )
            solution = solve(system, kl_scale, omega_between, omega_t_between, now.solution)
            ahead = _look(system, likelihood, offset, y, kl_scale, solution)
            if ahead.bound >= now.bound:
                break
            rate, ahead = 0.5 * rate, None
        if ahead is None:
            break
        gain = ahead.bound - now.bound
        now, omega, omega_t = ahead, omega_between, omega_t_between
        bounds.append(now.bound)
        if isinstance(likelihood, Gaussian) or gain < ENOUGH * system.n_rows:
            break
    return replace(now.solution, bounds=tuple(bounds))


def checked_bound(bound: float) -> float:
    """The bound before the first step, which tells a system that is not one of numbers."""
    if not np.isfinite(bound):
        raise NumericalError(
            "solving for q(u) comes to no finite number; look for extreme values, or raise the noise or the jitter."
        )
    return bound


def _prior(system: System, n_latent: int) -> Solution:
    n_landmarks = system.features.shape[1]
    unused = system.counts == 0
    variance = np.where(unused, 1.0, system.counts / np.where(unused, 1.0, system.prior_diagonal))
    return Solution(
        np.zeros((n_landmarks, n_latent)),
        np.tile(np.eye(n_landmarks), (n_latent, 1, 1)),
        np.zeros((len(variance), n_latent)),
        np.tile(variance[:, None], (1, n_latent)),
    )


def _look(
    system: System, likelihood: Likelihood, offset: np.ndarray, y: np.ndarray, kl_scale: float, solution: Solution
) -> _At:
    b, cov, mean, variance = solution.overall_mean, solution.overall_cov, solution.mean, solution.variance
    latent, spread = moments(system, solution)
    expected, slope, omega = derivatives(likelihood, y, latent + offset, spread)
    used = system.counts > 0
    twice_kl = (
        system.total(sum(m @ system.prior_times(m) for m in mean.T))
        + np.sum(system.prior_diagonal[used, None] * variance[used])
        - np.sum(system.counts[used, None] * np.log(variance[used]))
        + likelihood.n_latent * system.total(system.log_det - system.a.nnz)
    )
    overall_kl = 0.5 * (np.sum(b**2) + np.sum(np.trace(cov, axis1=1, axis2=2) - np.linalg.slogdet(cov)[1]) - b.size)
    bound = system.total(np.sum(expected)) - 0.5 * kl_scale / system.n_rows * twice_kl - overall_kl
    # All processes go the same way from here.
    bound = processes.agreed(bound) if system.shared else bound
    return _At(solution, float(bound), omega, omega * latent + slope)


def moments(system: System, solution: Solution) -> tuple[Float[np.ndarray, "N Q"], Float[np.ndarray, "N Q"]]:
    """Latent mean, without the offset, and variance of the rows of a system."""
    phi = system.features
    mean = phi @ solution.overall_mean + system.a @ solution.mean
    overall = np.stack([np.einsum("ng,ng->n", phi @ cov, phi) for cov in solution.overall_cov], axis=1)
    return mean, system.remainder[:, None] + overall + system.squares @ solution.variance


def derivatives(
    likelihood: Likelihood, y: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """E log p of each row, and for each latent function its slope in the mean and its weight ω."""
    expected, slope, omega = _in_blocks(_expected, likelihood, y, mean, variance)
    return expected, slope, omega


def log_scores(
    system: System, solution: Solution, likelihood: Likelihood, offset: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """Log predictive density of each row of a system, which may be another than that of training."""
    mean, variance = moments(system, solution)
    return _in_blocks(_log_predictive, likelihood, y, mean + offset, variance)[0]


def _in_blocks(
    of_rows: Callable[..., tuple[Array, ...]],
    likelihood: Likelihood,
    y: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
) -> tuple[np.ndarray, ...]:
    size = min(max(1, _AT_ONCE // likelihood.n_latent), 1 << (len(y) - 1).bit_length())
    parts = []
    for start in range(0, len(y), size):
        block = [part[start : start + size] for part in (y, mean, variance)]
        results = of_rows(likelihood, *(to_length(part, size) for part in block))
        parts.append([np.asarray(result)[: len(block[0])] for result in results])
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


@jit
def _expected(likelihood: Likelihood, y: Array, mean: Array, variance: Array) -> tuple[Array, Array, Array]:
    """E log p of each row, its slope in the mean, and its weights."""

    def one(y: Array, mean: Array, variance: Array) -> tuple[Array, Array, Array]:
        value, (slope, bend) = jax.value_and_grad(likelihood.expected_log_prob, argnums=(1, 2))(y, mean, variance)
        if isinstance(likelihood, StudentT):
            # Far out its curvature has the wrong sign; these are the weights of the Gaussians that it is made of.
            scale = likelihood.dof * jnp.exp(2.0 * likelihood.log_scale)
            return value, slope, (likelihood.dof + 1.0) / (scale + (y - mean) ** 2 + variance)
        return value, slope, jnp.maximum(-2.0 * bend, _LEAST_WEIGHT)

    return jax.vmap(one)(y, mean, variance)


@jit
def _log_predictive(likelihood: Likelihood, y: Array, mean: Array, variance: Array) -> tuple[Array]:
    return (jax.vmap(likelihood.log_predictive)(y, mean, variance),)
