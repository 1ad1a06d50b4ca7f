"""The compiled operations (`cpp/`), where they were built: how they are loaded and called."""

import os
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

from swsgp.errors import FitWarning
from swsgp.shapes import Array, Float, Int


def _loaded() -> tuple[Any, str]:
    """The operations, known to JAX, or why there are none."""
    if find_spec("swsgp.ops._native") is None:
        return None, "were not built when swsgp was installed, which takes a C++ compiler"
    try:
        from swsgp.ops import _native  # type: ignore[attr-defined]

        for name, handler in _native.operations().items():
            jax.ffi.register_ffi_target(f"swsgp_{name}", handler, platform="cpu")
    except (ImportError, jax.errors.JaxRuntimeError) as error:
        return None, f"could not be loaded ({_first_line(error)})"
    return _native, ""


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


_native, _TROUBLE = _loaded()

# Larger matrices are worth LAPACK's blocks.
MAX_SIZE = 128


def is_built() -> bool:
    """Whether the operations are there, also where the device in use is not the CPU that they are for."""
    return _native is not None


def works_on_host() -> bool:
    """Whether the operations can be called with arrays of the host, whatever the device in use."""
    return is_available() if jax.default_backend() == "cpu" else is_built() and not _trouble(_knows_one_point)


def is_available() -> bool:
    """Whether the operations are there and work on the device in use; says so once if they should and do not."""
    if jax.default_backend() != "cpu":
        return False
    return not _trouble(_works)


@cache
def _trouble(works: Callable[[], bool]) -> str:
    """Why the operations are of no use, which is said once."""
    trouble = _TROUBLE
    if _native is not None:
        try:
            trouble = "" if works() else "give wrong numbers on this machine"
        # Whatever they do that they should not.
        except Exception as error:
            trouble = f"do not work on this machine ({_first_line(error)})"
    if trouble:
        warnings.warn(f"the compiled operations {trouble}: the plain ones are used, and are slower.", FitWarning, 4)
    return trouble


def gpu_operation() -> Any:
    """Launches a kernel of CUDA; see `swsgp.ops.gpu`."""
    return _native.gpu_operation()


def add_gpu_kernel(name: str, function: int, launch: int, n_threads: int, shared_bytes: int) -> None:
    """Makes a kernel known to that operation, by CUDA's handle of it, and the address of cuLaunchKernel."""
    _native.add_gpu_kernel(name, function, launch, n_threads, shared_bytes)


def _works() -> bool:
    """A factor; terms and their gradient where k = e⁻¹, K = 1, m = 2 and S = 0.25; and the nearest of three points."""
    root = np.tril(np.arange(1.0, 26.0).reshape(5, 5))
    one = np.ones((1, 1))
    theta = np.array([1.0, 0, 1, 0, 0, 0, 0, 0, 0])

    def all_of_them(k: Array, *given: Array) -> tuple[Array, ...]:
        x, z, theta, _, variance, g = given
        shapes: list[tuple[int, ...]] = [(1, 1), (1, 1), (1,), (n_saved(1, 1, 1, np.float32),)]
        f_mean, f_variance, kl, saved = call("forward", shapes, *given[:-1], kinds=1)
        shapes = [(1, 1, 1), (1, 1, 1), (1, 9), (0,), (0,)]
        d_mean = call("backward", shapes, x, z, theta, variance, saved, g, 0 * g, 0 * g[0], kinds=1)[0]
        return inverse_factors(k[None])[0], f_mean, f_variance, kl, d_mean

    given = (root @ root.T, 0 * one, one[None], theta, 2 * one[None], 0.25 * one[None], one)
    with jax.ensure_compile_time_eval():
        results = jax.jit(all_of_them)(*(part.astype(np.float32) for part in given))
    found, *terms = map(np.asarray, results)
    expected = [2 * np.exp(-1), 1 - 0.75 * np.exp(-2), 0.5 * (0.25 + 4 - 1 - np.log(0.25)), np.exp(-1)]
    is_right = np.allclose(found, np.linalg.inv(root), rtol=1e-2, atol=1e-3)
    is_right &= np.allclose([part.item() for part in terms], expected, rtol=1e-4)
    nearest, _ = Tree(np.array([[0.0], [2.0], [3.0]])).nearest(np.array([[1.8]]), 2)
    return bool(is_right and _knows_one_point() and nearest.tolist() == [[1, 2]])


def _knows_one_point() -> bool:
    """A point at 0 with one inducing variable at 1: k = e⁻¹ and K = 1."""
    one = np.ones((1, 1))
    theta = np.array([1.0, 0, 1, 0, 0, 0, 0, 0, 0])
    found = latent(0 * one, np.zeros((1, 1), np.int32), one, 2 * one, 0.25 * one, theta, 1)
    expected = 2 * np.exp(-1), 1 - 0.75 * np.exp(-2), np.exp(-1)
    return bool(np.allclose([part[0, 0] for part in found], expected))


def call(
    name: str,
    shapes: Sequence[tuple[int, ...]],
    *arrays: Array,
    vmap_method: str = "sequential",
    **attributes: int,
) -> Any:
    """The operation of this name for the arrays' precision, with results of these shapes."""
    dtype = arrays[0].dtype
    results = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    operation = jax.ffi.ffi_call(f"swsgp_{name}_{dtype.name}", results, vmap_method=vmap_method)
    return operation(*arrays, **{key: np.int64(value) for key, value in attributes.items()})


def inverse_factors(k: Float[Array, "*B H H"]) -> Float[Array, "*B H H"]:
    """`swsgp.ops.local.inverse_factor` of many matrices."""
    return call("inverse_factor", [k.shape], k, vmap_method="broadcast_all")[0]


def largest(scores: Float[Array, "*B M"], n: int) -> Int[Array, "*B {n}"]:
    """`swsgp.ops.nearest.largest`, for few: its time grows with n²."""
    shape = jax.ShapeDtypeStruct((*scores.shape[:-1], n), jnp.int32)
    operation = jax.ffi.ffi_call(f"swsgp_largest_{scores.dtype.name}", shape, vmap_method="broadcast_all")
    return operation(scores, n=np.int64(n))


def latent(
    x: Float[np.ndarray, "B D"],
    index: Int[np.ndarray, "B H"],
    inducing: Float[np.ndarray, "M D"],
    u_mean: Float[np.ndarray, "M Q"],
    u_variance: Float[np.ndarray, "M Q"],
    theta: Float[np.ndarray, " P"],
    kinds: int,
) -> tuple[Float[np.ndarray, "B Q"], Float[np.ndarray, "B Q"], Float[np.ndarray, "B H"]]:
    """Mean and variance of q(f), without an offset, of a few points, and a = K⁻¹k: on one core, without JAX.

    `index` has each point's active set, u has independent variables, and `theta` is a packed `swsgp.ops.fused.Simple`.
    """
    shape = (len(x), u_mean.shape[1])
    mean, variance, weights = np.empty(shape, x.dtype), np.empty(shape, x.dtype), np.empty(index.shape, x.dtype)
    sizes = (len(x), len(inducing), index.shape[1], x.shape[1], shape[1])
    given = map(np.ascontiguousarray, (x, index, inducing, u_mean, u_variance, theta))
    _native.latent(*given, mean, variance, weights, *sizes, kinds, x.dtype == np.float64)
    return mean, variance, weights


def systems(
    x: Float[np.ndarray, "B D"],
    index: Int[np.ndarray, "B H"],
    inducing: Float[np.ndarray, "M D"],
    theta: Float[np.ndarray, " P"],
    kinds: int,
    features: Float[np.ndarray, "M G"],
    seen: Float[np.ndarray, "B G"],
    *,
    whole: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`swsgp.ops.fused.conditionals` of points, of which `index` has the active sets, on all cores without JAX."""
    (n, n_active), dtype = index.shape, inducing.dtype
    x, seen = (np.asarray(part, dtype) for part in (x, seen))
    shapes: list[tuple[int, ...]] = [(n, n_active), (n,)]
    shapes += [(n, n_active, n_active), (n,)] if whole else [(0,), (0,)]
    weights, remainder, precision, log_det = (np.empty(shape, dtype) for shape in shapes)
    arrays = (x, index, inducing, theta, features, seen, weights, remainder, precision, log_det)
    sizes = (n, len(inducing), n_active, x.shape[1], features.shape[1])
    _native.systems(*map(np.ascontiguousarray, arrays), *sizes, kinds, dtype == np.float64, n_cores())
    return weights, remainder, precision, log_det


class Tree:
    """Points (N, D), sorted into boxes, so that the nearest of them are found fast."""

    def __init__(self, points: np.ndarray):
        self._points = np.ascontiguousarray(points)
        self._tree = _native.tree(self._points, *points.shape)

    def nearest(self, queries: np.ndarray, n: int) -> tuple[np.ndarray, int]:
        """int32 indices of the n nearest points to each query, nearest first; ties go to the lower index.

        And how many points were looked at for all queries together.
        """
        found = np.empty((len(queries), n), dtype=np.int32)
        queries = np.ascontiguousarray(queries, self._points.dtype)
        n_looked_at = int(_native.nearest(self._tree, queries, found, len(queries), n, n_cores()))
        return found, n_looked_at


def sum_of_blocks(
    index: Int[np.ndarray, "N H"], blocks: Float[np.ndarray, "N H H"], n_variables: int
) -> sparse.csr_matrix:
    """The upper triangle of the sum of symmetric matrices, each over H of all variables, whose numbers ascend."""
    index, blocks = np.ascontiguousarray(index, np.int32), np.ascontiguousarray(blocks, np.float64)
    parts = _native.sum_of_blocks(index, blocks, *index.shape, n_variables, n_cores())
    lengths, columns, values = (np.frombuffer(part, kind) for part, kind in zip(parts, "iid", strict=True))
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return sparse.csr_matrix((values, columns, starts), (n_variables, n_variables))


def gram_times(
    index: Int[np.ndarray, " NH"],
    a: Float[np.ndarray, " NH"],
    omega: Float[np.ndarray, " N"],
    start: Float[np.ndarray, " N"],
    v: Float[np.ndarray, " M"],
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " M"]]:
    """r = ω (start + A v) and Aᵀ r, for A (N, M) with as many numbers in each row, at the columns `index`."""
    r, product = np.empty(len(omega)), np.empty(len(v))
    vectors = (np.ascontiguousarray(part, np.float64) for part in (omega, start, v))
    _native.gram_times(index, a, *vectors, r, product, len(r), a.size // len(r), len(v), n_cores())
    return r, product


def symmetric_times(
    starts: Int[np.ndarray, " M1"],
    columns: Int[np.ndarray, " K"],
    values: Float[np.ndarray, " K"],
    v: Float[np.ndarray, " M"],
) -> Float[np.ndarray, " M"]:
    """The product with a symmetric matrix whose upper triangle is given in compressed rows, `starts` in int64."""
    product = np.empty(len(v))
    v = np.ascontiguousarray(v, np.float64)
    _native.symmetric_times(starts, columns, values, v, product, len(v), n_cores())
    return product


def n_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def n_saved(n_points: int, n_active: int, n_latent: int, dtype: Any) -> int:
    """How many numbers the forward operation keeps for the backward one."""
    return int(_native.saved_numbers(n_points, n_active, n_latent, dtype == np.float64))
