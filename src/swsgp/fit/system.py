"""The linear system of the closed form: what one pass over the rows makes of them. `solve` has the formulas."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from swsgp import processes
from swsgp.arrays import power_of_two_below
from swsgp.errors import SettingError
from swsgp.gp.active import PerPoint, SearchInducing
from swsgp.gp.model import SparseGP, prepared
from swsgp.gp.on_host import HostConditionals
from swsgp.memory import check_memory
from swsgp.ops import native
from swsgp.shapes import Float

# Numbers of K⁻¹, or of the features of landmarks, that are held at once.
MAX_BLOCKS = 1 << 23


@dataclass(frozen=True)
class System:
    """What one pass over the data makes of them; see the formulas of `solve`.

    `prior` is the upper triangle of Σ K⁻¹, so that P is κ/N times as much; `log_det` is Σ log|K|. If the system is
    `shared`, these are of the rows of this process, and all sums over rows are completed by those of the others.
    """

    a: sparse.csr_matrix
    features: Float[np.ndarray, "N G"]
    remainder: Float[np.ndarray, " N"]
    prior: sparse.csr_matrix
    log_det: float
    shared: bool = False

    def total(self, of_rows: np.ndarray | float | int) -> np.ndarray:
        """A sum over rows, with those of other processes."""
        return processes.summed(of_rows) if self.shared else np.asarray(of_rows)

    @cached_property
    def n_rows(self) -> int:
        return int(self.total(self.a.shape[0]))

    @cached_property
    def squares(self) -> sparse.csr_matrix:
        return self.a.multiply(self.a).tocsr()

    @cached_property
    def prior_diagonal(self) -> Float[np.ndarray, " M"]:
        return self.total(self._own_diagonal)

    @cached_property
    def _own_diagonal(self) -> Float[np.ndarray, " M"]:
        return self.prior.diagonal()

    @cached_property
    def counts(self) -> Float[np.ndarray, " M"]:
        """How many rows use each inducing variable."""
        return self.total(np.bincount(self.a.indices, minlength=self.a.shape[1]).astype(np.float64))

    @cached_property
    def _prior_parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # SciPy has places and columns in one type, which is int64 for very many numbers.
        return self.prior.indptr.astype(np.int64), self.prior.indices.astype(np.int32, copy=False), self.prior.data

    @cached_property
    def _index(self) -> np.ndarray:
        return self.a.indices.astype(np.int32, copy=False)

    def prior_times(self, v: Float[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
        """(Σ K⁻¹) v over the rows of this process, from its upper triangle."""
        if native.works_on_host():
            return native.symmetric_times(*self._prior_parts, v)
        return self.prior @ v + self.prior.T @ v - self._own_diagonal * v

    def reweighted(
        self, omega: Float[np.ndarray, " N"], start: Float[np.ndarray, " N"], v: Float[np.ndarray, " M"]
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " M"]]:
        """r = ω (start + A v), and Aᵀ r over the rows of this process."""
        if native.works_on_host():
            return native.gram_times(self._index, self.a.data, omega, start, v)
        r = omega * (start + self.a @ v)
        return r, self.a.T @ r


def check_solving(n_rows: int, n_inducing: int, n_neighbors: int, n_landmarks: int) -> None:
    """Whether there is memory for a system of so many rows."""
    # The weights and their squares, the features, the prior part twice while it is added up, and a block of rows.
    a_block = min(MAX_BLOCKS, n_rows * n_neighbors * max(n_neighbors, n_landmarks))
    n_numbers = n_rows * (3 * n_neighbors + 2 * n_landmarks) + 4 * a_block
    n_numbers += 2 * n_prior_numbers(n_rows, n_inducing, n_neighbors)
    check_memory(
        f"solving for q(u) with {n_rows:,} rows, n_inducing={n_inducing:,}, n_neighbors={n_neighbors} and "
        f"n_landmarks={n_landmarks}",
        12.0 * n_numbers,
        "lower one of them",
    )


def n_prior_numbers(n_rows: int, n_inducing: int, n_neighbors: int) -> int:
    """About how many numbers the upper triangle of Σ K⁻¹ has, at most."""
    # Measured for normal points of 8 to 15 columns: 7 H in each row for as many rows as inducing points, 27 H for many.
    a_row = (8 if n_rows <= 2 * n_inducing else 28) * n_neighbors
    return min(n_rows * n_neighbors * (n_neighbors + 1) // 2, n_inducing * min(a_row, n_inducing))


def build(model: SparseGP, x: Float[np.ndarray, "N D"], shared: bool = False) -> System:
    """One pass over the rows, in blocks, for a model whose rows have active sets of their own.

    With `shared` these are the rows of this process, beside those of others.
    """
    n_rows, n_inducing, n_neighbors = len(x), len(model.inducing), n_neighbors_of(model)
    n_landmarks = 0 if model.landmarks is None else len(model.landmarks.inputs)
    check_solving(n_rows, n_inducing, n_neighbors, n_landmarks)
    search = SearchInducing(model.metric, np.asarray(model.inducing), n_approximate=n_rows)
    index = np.sort(search(x, n_neighbors), axis=1)
    model = prepared(model)
    seen = np.zeros((n_rows, 0))
    if model.landmarks is not None:
        seen = model.landmarks.of_all(model.covariance, x)
    # The plain operations hold the features of all neighbours of a block, too.
    conditionals = HostConditionals(model, n_neighbors)
    widest = n_neighbors if conditionals.are_compiled else max(n_neighbors, seen.shape[1])
    size = power_of_two_below(max(1, MAX_BLOCKS // (n_neighbors * widest)))
    a, remainder = np.empty((n_rows, n_neighbors)), np.empty(n_rows)
    prior, log_det = SparseSum(n_inducing), 0.0
    for start in range(0, n_rows, size):
        some = slice(start, start + size)
        own = index[some]
        a[some], remainder[some], k_inverse, log_dets = conditionals(x[some], own, seen[some])
        prior.add(sum_of_blocks(own, k_inverse, n_inducing))
        log_det += float(log_dets.sum())
    starts = np.arange(n_rows + 1) * n_neighbors
    weights_of_rows = sparse.csr_matrix((a.ravel(), index.ravel(), starts), (n_rows, n_inducing))
    return System(weights_of_rows, seen, remainder, prior.total(), log_det, shared)


class SparseSum:
    """A sum of many sparse matrices, in which each is added a few times only: small sums first, then sums of sums."""

    def __init__(self, n_variables: int):
        self._sums = [sparse.csr_matrix((n_variables, n_variables))]

    def add(self, part: sparse.csr_matrix) -> None:
        """Sums are kept from large to small, each at least twice the next, so that all take twice the first at most."""
        while self._sums and self._sums[-1].nnz < 2 * part.nnz:
            part = self._sums.pop() + part
        self._sums.append(part)

    def total(self) -> sparse.csr_matrix:
        while len(self._sums) > 1:
            part = self._sums.pop()
            self._sums[-1] = self._sums[-1] + part
        return self._sums[0]


def sum_of_blocks(index: np.ndarray, blocks: np.ndarray, n_variables: int) -> sparse.csr_matrix:
    """The upper triangle of the sum of symmetric matrices, each over some variables, whose numbers ascend."""
    if native.works_on_host():
        return native.sum_of_blocks(index, blocks, n_variables)
    first, second = np.triu_indices(index.shape[1])
    place = index[:, first].ravel(), index[:, second].ravel()
    return sparse.coo_matrix((blocks[:, first, second].ravel(), place), (n_variables, n_variables)).tocsr()


def n_neighbors_of(model: SparseGP) -> int:
    """H, for a model whose rows have active sets of their own."""
    if not isinstance(model.active, PerPoint):
        raise SettingError("q(u) is solved for where each point has its own active set; train other models by steps.")
    return model.active.n_neighbors
