"""The nearest of M points to each of many: on the device, or in boxes of points on the CPU."""

from collections.abc import Callable
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import cKDTree
from sklearn.neighbors import NearestNeighbors

from swsgp.ops import approximate, native
from swsgp.ops.compiled import jit
from swsgp.shapes import Array, Float, Int

# Measured on two CPU cores: with more columns than this, looking at all points is faster than boxes, or a tree.
_BOXES_MAX_COLUMNS, _TREE_MAX_COLUMNS = 24, 10
# With fewer it depends on the points: so many of them say how many are looked at in boxes. That takes longer for each
# of them than looking at all does, or less where boxes of so many bytes stay in a cache.
_N_SAMPLE, _LOOK_IN_BOXES, _LOOK_IN_SMALL_BOXES, _SMALL_BOXES = 64, 2.5, 0.75, 8 << 20
# Queries that are searched for at once on a CPU, after which an interruption is noticed.
_AT_ONCE = 1 << 17
# Boxes on the CPU beat a GPU that looks at all points from so many points on, times CPU cores, and up to so many
# columns: an H200 takes 16 ps for each pair, a core 70 µs for each search.
_BOXES_MIN_POINTS, _BOXES_BESIDE_GPU_MAX_COLUMNS = 5_000_000, 10
# Up to so many numbers, of all points times the queries, asking a GPU takes longer than looking at them on the host.
_MAX_ON_HOST = 1 << 21
_THREADS_MIN_POINTS = 16
# So many distances are worth scikit-learn's search in blocks on all cores, which is several times faster on a CPU.
_MIN_BLOCKWISE = 1_000_000
# So many more points than asked for are looked at once more, with so many numbers at once, for the order of those that
# are equally far.
_SPARE, _MAX_NUMBERS = 8, 1 << 22
# Of squares of distances that come from products, beside those of their ends.
_ROUNDING = 1e-12
# So many numbers to be looked at, about a minute's work for two cores, are worth an approximate search, where one is
# allowed; a point counts for so many at least.
_MIN_APPROXIMATE, _LEAST_A_POINT = 5e11, 16
# Scores held at once by a search for many points: 64 MB in float32 on a CPU, 2 GB on other devices, whose many cores
# want that much work at a time.
_MAX_SCORES = {"cpu": 1 << 24, "other": 1 << 29}
# So few of many scores are found by the compiled operation several times as fast as by XLA.
_FEW = 32
# Groups are worth their second search where there are so many times n scores.
_MIN_GROUPED = 64


def largest(scores: Float[Array, "B M"], n: int) -> Int[Array, "B {n}"]:
    """Indices of the n largest scores of each row, best first; ties go to the lower index, and what is
    no number counts as -∞.

    On a GPU: the n largest are in the n groups of neighbouring scores whose largest are the largest, so that two
    searches among about sqrt(n M) scores each do for one among M. On a CPU that is no faster.
    """
    n_scores, on_cpu = scores.shape[1], jax.default_backend() == "cpu"
    if on_cpu and n <= _FEW and native.is_available():
        return native.largest(scores, n)
    scores = jnp.where(jnp.isnan(scores), -jnp.inf, scores)
    if on_cpu or n_scores < _MIN_GROUPED * n:
        return jax.lax.top_k(scores, n)[1]
    size = 1 << ((n_scores // n).bit_length() // 2)
    groups = jnp.pad(scores, ((0, 0), (0, -n_scores % size)), constant_values=-jnp.inf)
    groups = groups.reshape(len(scores), -1, size)
    # In the order of their places, so that the first of several equal scores is still the first.
    best = jnp.sort(jax.lax.top_k(jnp.max(groups, axis=2), n)[1], axis=1)
    found = jnp.take_along_axis(groups, best[:, :, None], axis=1).reshape(len(scores), -1)
    place = jax.lax.top_k(found, n)[1]
    return jnp.take_along_axis(best, place // size, axis=1) * size + place % size


def nearest(x: Float[Array, "B D"], z: Float[Array, "M D"], factors: Float[Array, " D"], n: int) -> Int[Array, "B {n}"]:
    r"""Indices of the n rows of z nearest to each row of x, nearest first, with columns multiplied by `factors`.

    Ranks by $(x-c)^\top F^2 (z-c) - \tfrac12\|F(z-c)\|^2$, which orders as the distance does and is one matrix
    product. The centre c keeps a common offset from eating up the digits of the squares; it is the median of three
    points, which one wild value among them does not pull away.
    """
    squared = factors**2
    one, two, three = z[0], z[z.shape[0] // 2], z[-1]
    centre = jnp.maximum(jnp.minimum(one, two), jnp.minimum(jnp.maximum(one, two), three))
    x, z = (x - centre) * squared, z - centre
    return largest(x @ z.T - 0.5 * jnp.sum(squared * z**2, axis=1), n)


def union(per_point: Int[Array, "B K"], n_points: int, n: int) -> Int[Array, " {n}"]:
    """The n of `n_points` points that come first when every row lists its nearest, best first.

    Rank decides: all rows' first choices, then all second choices, and so on until the set is full. Within the
    last rank the earlier rows go first; rows of a mini-batch come in random order, so no point is favoured.
    K must be at least n, so that one row alone can fill the set.
    """
    n_rows, n_ranks = per_point.shape
    turn = jnp.arange(n_ranks)[None, :] * n_rows + jnp.arange(n_rows)[:, None]
    first_turn = jnp.full(n_points, n_ranks * n_rows).at[per_point].min(turn)
    return jax.lax.top_k(-first_turn, n)[1]


class Search:
    """As `nearest`, from the host for any number of points: in boxes or a tree on a CPU, in blocks on a GPU, beside
    which the host looks for very many points, in boxes, and for very few.

    All are exact, but for a long search on a CPU that may be approximate, which is one for `n_approximate` queries in
    all calls together, where FAISS is there. In an exact search on a CPU a row's neighbours do not depend on the rows
    beside it; of points that are equally far those with lower indices come first, but for those in a tree.
    """

    def __init__(self, z: np.ndarray, factors: np.ndarray, *, n_approximate: int = 0):
        self._z, self._factors, self._n_approximate = z, factors, n_approximate
        self._looks: float | None = None
        self._on_cpu = jax.default_backend() == "cpu"
        self._has_boxes = native.works_on_host() and z.shape[1] <= _BOXES_MAX_COLUMNS
        are_many = len(z) * native.n_cores() >= _BOXES_MIN_POINTS
        self._boxes_beside_gpu = self._has_boxes and are_many and z.shape[1] <= _BOXES_BESIDE_GPU_MAX_COLUMNS

    def __call__(self, x: np.ndarray, n: int) -> np.ndarray:
        """int32 indices of shape (len(x), n)."""
        if not len(x):
            return np.empty((0, n), np.int32)
        is_number = np.isfinite(x).all(axis=1)
        if not is_number.all():
            # It has no neighbours; what is computed with any is not a number either.
            found = np.zeros((len(x), n), np.int32)
            found[is_number] = self(x[is_number], n)
            return found
        on_host = self._on_cpu or len(x) * self._z.size <= _MAX_ON_HOST
        has_boxes = self._has_boxes if on_host else self._boxes_beside_gpu
        boxes_pay = has_boxes and (self._z.nbytes <= _SMALL_BOXES or self._looks_in_boxes(n) <= len(self._z))
        if not on_host and not boxes_pay:
            return in_blocks(lambda block: _nearest(block, *self._on_device, n), x, len(self._z))
        if self._on_cpu and self._is_long(n) and approximate.is_installed():
            return self._lists(self._in_units(x), n)
        parts = (self._in_units(x[start : start + _AT_ONCE]) for start in range(0, len(x), _AT_ONCE))
        if boxes_pay:
            return np.concatenate([self._boxes.nearest(part, n)[0] for part in parts])
        if self._has_boxes or x.shape[1] > _TREE_MAX_COLUMNS:
            return np.concatenate([self._among_all(part, n) for part in parts])
        # Starting threads takes longer than finding the neighbours of a few points.
        workers = -1 if len(x) >= _THREADS_MIN_POINTS else 1
        return np.asarray(self._tree.query(self._in_units(x), k=np.arange(1, n + 1), workers=workers)[1], np.int32)

    def _is_long(self, n: int) -> bool:
        n_columns = self._z.shape[1]
        if not self._n_approximate or (n_columns <= _TREE_MAX_COLUMNS and not self._has_boxes):
            return False
        looks = len(self._z) if not self._has_boxes else min(len(self._z), self._looks_in_boxes(n))
        return self._n_approximate * looks * max(n_columns, _LEAST_A_POINT) >= _MIN_APPROXIMATE

    def _looks_in_boxes(self, n: int) -> float:
        """How many points are looked at for one query, as many of all as take as long."""
        if self._looks is None:
            # The points themselves tell, so that all queries go the same way.
            some = self._z[:: max(1, len(self._z) // _N_SAMPLE)][:_N_SAMPLE]
            weight = _LOOK_IN_SMALL_BOXES if self._z.nbytes <= _SMALL_BOXES else _LOOK_IN_BOXES
            self._looks = weight * self._boxes.nearest(self._in_units(some), n)[1] / len(some)
        return self._looks

    @cached_property
    def _on_device(self) -> tuple[Array, Array]:
        return jnp.asarray(self._z), jnp.asarray(self._factors, self._z.dtype)

    @cached_property
    def _lists(self) -> approximate.Lists:
        return approximate.Lists(self._scaled)

    @cached_property
    def _centre(self) -> np.ndarray:
        # A common offset would eat up digits of squares, and of columns that are scaled.
        return np.median(self._z, axis=0).astype(np.float64)

    def _in_units(self, x: np.ndarray) -> np.ndarray:
        return (x - self._centre) * self._factors

    @cached_property
    def _scaled(self) -> np.ndarray:
        return self._in_units(self._z)

    @cached_property
    def _tree(self) -> cKDTree:
        return cKDTree(self._scaled)

    @cached_property
    def _half_squares(self) -> np.ndarray:
        return 0.5 * np.sum(self._scaled**2, axis=1)

    @cached_property
    def _boxes(self) -> native.Tree:
        # Differences of centred inputs have all the digits that these had.
        return native.Tree(self._in_units(self._z).astype(self._z.dtype))

    def _among_all(self, x: np.ndarray, n: int) -> np.ndarray:
        n_candidates = min(n + _SPARE, len(self._z))
        index = np.sort(self._candidates(x, n_candidates), axis=1)
        found, far = self._in_order(x, index, n)
        if n_candidates < len(self._z):
            # Others may be as far as the last one. Rows of such a table are often equal, too.
            rounding = _ROUNDING * (np.sum(x**2, axis=1) + 2.0 * self._half_squares[index].max(axis=1))
            are_more = np.flatnonzero(far[:, -1] - far[:, n - 1] <= rounding)
            if len(are_more):
                _, first, place = np.unique(x[are_more], axis=0, return_index=True, return_inverse=True)
                each = are_more[first]
                found[are_more] = self._all_within(x[each], far[each, n - 1], n)[place.ravel()]
        return found

    def _candidates(self, x: np.ndarray, n: int) -> np.ndarray:
        """The n nearest in any order; which of those that are equally far depends on the rows asked for together."""
        if len(x) * len(self._z) >= _MIN_BLOCKWISE:
            search = NearestNeighbors(n_neighbors=n, algorithm="brute").fit(self._scaled)
            return np.asarray(search.kneighbors(x, return_distance=False), dtype=np.int32)
        far = self._half_squares - x @ self._scaled.T
        return np.argpartition(far, n - 1, axis=1)[:, :n].astype(np.int32)

    def _in_order(self, x: np.ndarray, index: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The n nearest of each row's candidates, which come by their index, and the squares of all their distances;
        nearest first."""
        far = np.empty(index.shape)
        size = max(1, _MAX_NUMBERS // (index.shape[1] * x.shape[1]))
        for start in range(0, len(x), size):
            part = slice(start, start + size)
            far[part] = np.sum((x[part, None] - self._scaled[index[part]]) ** 2, axis=2)
        order = np.argsort(far, axis=1, kind="stable")
        return np.take_along_axis(index, order[:, :n], axis=1), np.take_along_axis(far, order, axis=1)

    def _all_within(self, x: np.ndarray, last: np.ndarray, n: int) -> np.ndarray:
        """The n nearest of all points that are no farther than the square `last` of a distance, and it is that far."""
        found = np.empty((len(x), n), np.int32)
        size = max(1, _MAX_NUMBERS // len(self._z))
        for start in range(0, len(x), size):
            part = slice(start, start + size)
            own, others = np.sum(x[part] ** 2, axis=1)[:, None], 2.0 * self._half_squares
            squares = own + others - 2.0 * (x[part] @ self._scaled.T)
            # Products are off by less than this.
            is_near = squares <= last[part, None] + _ROUNDING * (own + others)
            for i, row in enumerate(is_near, start):
                found[i] = self._in_order(x[[i]], np.flatnonzero(row)[None], n)[0]
        return found


def in_blocks(rank: Callable[[Array], Array], x: np.ndarray, n_points: int) -> np.ndarray:
    """`rank` applied to blocks of rows of x, so that the scores held at once stay bounded.

    Blocks are padded to a power of two of rows: searches of differing sizes share a few compiled programs.
    """
    max_scores = _MAX_SCORES["cpu" if jax.default_backend() == "cpu" else "other"]
    largest_block = 1 << (max(1, max_scores // n_points).bit_length() - 1)
    size = min(1 << (len(x) - 1).bit_length(), largest_block)
    found = []
    for start in range(0, len(x), size):
        block = x[start : start + size]
        padded = np.concatenate([block, block[-1:].repeat(size - len(block), 0)])
        found.append(np.asarray(rank(jnp.asarray(padded)), dtype=np.int32)[: len(block)])
    return np.concatenate(found)


_nearest = jit(nearest, constant="n")
