r"""q(u) in closed form from rows that come in parts: as `solve`, in memory that does not depend on how many there are.

A pass over the rows adds up $\sum_n \omega_n a_n a_n^\top$, which is as sparse as P, and $\sum_n \omega_n t_n a_n$,
with the weights and targets at the q so far; conjugate gradients then need these sums alone. A Gaussian likelihood
takes one pass, others one for each step. There are no landmarks here. Where several processes train together each
makes the sums of its own rows, and products are added up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import sparse

from swsgp import processes
from swsgp.arrays import power_of_two_below
from swsgp.data.stores import Store
from swsgp.fit import solve
from swsgp.fit.solve import Solution, checked_bound, conjugate_gradients, derivatives
from swsgp.fit.system import SparseSum, n_neighbors_of, n_prior_numbers, sum_of_blocks
from swsgp.gp.active import SearchInducing
from swsgp.gp.likelihoods import Gaussian, Likelihood
from swsgp.gp.model import SparseGP, prepared
from swsgp.gp.on_host import HostConditionals
from swsgp.memory import check_memory

# Numbers of the matrices of rows that are held at once: 8 MB for each kind of them.
_MAX_BLOCKS = 1 << 20
# x, y and the sorted numbers of the neighbours of some rows.
Part = tuple[np.ndarray, np.ndarray, np.ndarray]


def parts_of(store: Store, model: SparseGP) -> Callable[[], Iterator[Part]]:
    """Passes over a store; neighbours are found in the first one, and kept on disk for the others."""
    n = n_neighbors_of(model)
    search = SearchInducing(model.metric, np.asarray(model.inducing), n_approximate=store.n_rows)
    found: set[int] = set()

    def one_pass() -> Iterator[Part]:
        for number in range(len(store.sizes)):
            x, y = store.part(number)
            if number not in found:
                store.keep(number, np.sort(search(x, n), axis=1))
                found.add(number)
            yield x.astype(np.float64), y.astype(np.float64), store.kept(number, n)

    return one_pass


@dataclass
class _Prior:
    """Sums over the rows that do not depend on q; see `System`.

    Sparse ones are over the rows of this process, the others over all, once the pass is over.
    """

    sums: SparseSum
    counts: np.ndarray
    log_det: float = 0.0
    n_rows: int = 0

    @property
    def upper(self) -> sparse.csr_matrix:
        """The upper triangle of Σ K⁻¹."""
        return self.sums.total()

    @property
    def diagonal(self) -> np.ndarray:
        return processes.summed(self.upper.diagonal())

    def add(self, index: np.ndarray, precision: np.ndarray, log_det: np.ndarray) -> None:
        self.sums.add(sum_of_blocks(index, precision, len(self.counts)))
        self.counts += np.bincount(index.ravel(), minlength=len(self.counts))
        self.log_det += float(log_det.sum())
        self.n_rows += len(index)

    def end(self) -> None:
        """The pass is over."""
        self.counts = processes.summed(self.counts)
        log_det, n_rows = processes.summed(np.array([self.log_det, self.n_rows]))
        self.log_det, self.n_rows = float(log_det), int(n_rows)


@dataclass
class _Weighted:
    """Sums over the rows at some q: of E log p, and for each latent function of ω a aᵀ and of ω t a."""

    expected: float
    upper: list[sparse.csr_matrix]
    targets: np.ndarray

    def towards(self, other: "_Weighted", rate: float) -> "_Weighted":
        """Some way from here to other weights."""
        upper = [a + rate * (b - a) for a, b in zip(self.upper, other.upper, strict=True)]
        return _Weighted(np.nan, upper, self.targets + rate * (other.targets - self.targets))


def check_parts(n_rows: int, n_inducing: int, n_neighbors: int, likelihood: Likelihood) -> None:
    """Whether there is memory for the sums over so many rows."""
    n_matrices = 2 if isinstance(likelihood, Gaussian) else 2 + 5 * likelihood.n_latent
    check_memory(
        f"solving for q(u) with {n_rows:,} rows, n_inducing={n_inducing:,} and n_neighbors={n_neighbors}",
        12.0 * n_matrices * n_prior_numbers(n_rows, n_inducing, n_neighbors),
        "lower one of them",
    )


def maximise_parts(model: SparseGP, one_pass: Callable[[], Iterator[Part]], kl_scale: float) -> Solution:
    """The maximum of the bound over q; `solve.maximise` says how."""
    n_inducing, n_latent = np.shape(model.variational.mean)
    conditionals = HostConditionals(prepared(model), n_neighbors_of(model))
    likelihood, offset = model.likelihood, np.asarray(model.offset)
    prior = _Prior(SparseSum(n_inducing), np.zeros(n_inducing))
    if isinstance(likelihood, Gaussian):
        # The weights do not depend on q.
        nowhere = _solution(np.zeros((n_inducing, n_latent)), np.ones((n_inducing, n_latent)))
        weighted = _sums(conditionals, likelihood, offset, one_pass(), nowhere, prior)
        start = _start(prior, n_latent)
        checked_bound(_bound(prior, weighted, start, kl_scale))
        return _solve(prior, weighted, kl_scale, start)
    for part in one_pass():
        for x, _, index in _blocks_of(part):
            prior.add(index, *conditionals(x, index, np.zeros((len(x), 0)))[2:])
    prior.end()
    solution = _start(prior, n_latent)
    now = _sums(conditionals, likelihood, offset, one_pass(), solution)
    bounds = [checked_bound(_bound(prior, now, solution, kl_scale))]
    at = _Weighted(np.nan, [0.0 * upper for upper in now.upper], np.zeros_like(now.targets))
    for _ in range(solve.MAX_PASSES):
        rate, ahead = 1.0, None
        while rate >= solve.LEAST_RATE:
            between = at.towards(now, rate)
            tried = _solve(prior, between, kl_scale, solution)
            processes.stop_if_interrupted()
            found = _sums(conditionals, likelihood, offset, one_pass(), tried)
            bound = _bound(prior, found, tried, kl_scale)
            if bound >= bounds[-1]:
                ahead = found
                break
            rate *= 0.5
        if ahead is None:
            break
        now, at, solution = ahead, between, tried
        bounds.append(bound)
        if bounds[-1] - bounds[-2] < solve.ENOUGH * prior.n_rows:
            break
    return solution


def _sums(
    conditionals: HostConditionals,
    likelihood: Likelihood,
    offset: np.ndarray,
    parts: Iterator[Part],
    solution: Solution,
    prior: _Prior | None = None,
) -> _Weighted:
    """One pass; with `prior`, those sums are made, too."""
    n_inducing, n_latent = solution.mean.shape
    total, targets = 0.0, np.zeros((n_inducing, n_latent))
    upper = [SparseSum(n_inducing) for _ in range(n_latent)]
    for part in parts:
        for x, y, index in _blocks_of(part):
            found = conditionals(x, index, np.zeros((len(x), 0)), whole=prior is not None)
            if prior is not None:
                prior.add(index, *found[2:])
            a, remainder = found[:2]
            latent = np.einsum("nh,nhq->nq", a, solution.mean[index])
            spread = remainder[:, None] + np.einsum("nh,nhq->nq", a**2, solution.variance[index])
            expected, slope, omega = derivatives(likelihood, y, latent + offset, spread)
            # A Gaussian likelihood's slope is ω (y − μ), wherever μ is.
            omega_t = omega * latent + slope
            total += float(expected.sum())
            for q in range(n_latent):
                blocks = (omega[:, q, None] * a)[:, :, None] * a[:, None, :]
                upper[q].add(sum_of_blocks(index, blocks, n_inducing))
                targets[:, q] += np.bincount(index.ravel(), (omega_t[:, q, None] * a).ravel(), n_inducing)
    if prior is not None:
        prior.end()
    total = float(processes.summed(total))
    return _Weighted(total, [own.total() for own in upper], processes.summed(targets))


def _blocks_of(part: Part) -> Iterator[Part]:
    """Few enough rows at a time for their matrices."""
    size = power_of_two_below(max(1, _MAX_BLOCKS // part[2].shape[1] ** 2))
    for start in range(0, len(part[1]), size):
        yield tuple(array[start : start + size] for array in part)  # type: ignore[misc]


def _start(prior: _Prior, n_latent: int) -> Solution:
    unused = prior.counts == 0
    variance = np.where(unused, 1.0, prior.counts / np.where(unused, 1.0, prior.diagonal))
    return _solution(np.zeros((len(variance), n_latent)), np.tile(variance[:, None], (1, n_latent)))


def _solution(mean: np.ndarray, variance: np.ndarray) -> Solution:
    n_latent = mean.shape[1]
    return Solution(np.zeros((0, n_latent)), np.zeros((n_latent, 0, 0)), mean, variance)


def _solve(prior: _Prior, weighted: _Weighted, kl_scale: float, start: Solution) -> Solution:
    scale = kl_scale / prior.n_rows
    mean, variance = np.empty_like(start.mean), np.empty_like(start.variance)
    for q, upper in enumerate(weighted.upper):
        whole = (scale * prior.upper + upper).tocsr()
        diagonal = np.maximum(processes.summed(whole.diagonal()), 1e-300)
        mean[:, q] = conjugate_gradients(
            partial(_times_of_all, whole),
            weighted.targets[:, q],
            start.mean[:, q],
            partial(np.multiply, 1.0 / diagonal),
            shared=True,
        )
        # A variable that no row uses keeps its prior.
        variance[:, q] = np.where(prior.counts > 0, scale * prior.counts / diagonal, start.variance[:, q])
    return _solution(mean, variance)


def _bound(prior: _Prior, at: _Weighted, solution: Solution, kl_scale: float) -> float:
    used, upper, mean, variance = prior.counts > 0, prior.upper, solution.mean, solution.variance
    twice_kl = (
        processes.summed(np.sum(mean * np.stack([_times(upper, column) for column in mean.T], axis=1)))
        + np.sum(prior.diagonal[used, None] * variance[used])
        - np.sum(prior.counts[used, None] * np.log(variance[used]))
        + mean.shape[1] * (prior.log_det - prior.counts.sum())
    )
    # All processes go the same way from here.
    return float(processes.agreed(at.expected - 0.5 * kl_scale / prior.n_rows * twice_kl))


def _times_of_all(upper: sparse.csr_matrix, v: np.ndarray) -> np.ndarray:
    return processes.summed(_times(upper, v))


def _times(upper: sparse.csr_matrix, v: np.ndarray) -> np.ndarray:
    """A symmetric matrix, of which the upper triangle is there, times a vector."""
    return upper @ v + upper.T @ v - upper.diagonal() * v
