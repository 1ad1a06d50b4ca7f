"""The kernels for GPUs: their arithmetic, run on the host, against the operations for CPUs; and how they are found."""

import ctypes
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from swsgp import RBF, Columns, Constant, Linear, Matern, Matern12, Matern32, Matern52
from swsgp.errors import FitWarning
from swsgp.gp.model import with_precision
from swsgp.ops import fused, gpu, native
from swsgp.ops.gpu import Sizes

needs_compiled = pytest.mark.skipif(native._native is None, reason="the compiled operations were not built")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler")
HOST = Path(__file__).parent / "cuda_on_host.cpp"
COLUMNS = 3


@dataclass
class Problem:
    """Points with active sets of their own, and cotangents of what comes out."""

    covariance: Any
    n_points: int
    n_active: int
    n_latent: int = 1
    has_s: bool = True
    wants_inputs: bool = True
    nugget: float = 0.01
    jitter: float = 1e-3

    @property
    def shapes(self):
        return [(self.n_points, self.n_latent), (self.n_points, self.n_latent), (self.n_points,)]

    def sample(self, rng):
        """x, z, theta, mean and variance; and the cotangents."""
        x = rng.normal(size=(self.n_points, COLUMNS))
        z = x[:, None] + 0.7 * rng.normal(size=(self.n_points, self.n_active, COLUMNS))
        mean = rng.normal(size=(self.n_points, self.n_active, self.n_latent))
        variance = np.exp(rng.normal(size=mean.shape) - 2.0) if self.has_s else np.zeros((self.n_points, 0, 1))
        theta = self.simple.packed(self.nugget, self.jitter)
        g = [rng.normal(size=shape) for shape in self.shapes]
        if not self.has_s:
            g[2][:] = 0.0
        return [x, z, theta, mean, variance], g

    @property
    def simple(self):
        return with_precision(self.covariance, "float64").simple(COLUMNS)

    @property
    def sizes(self):
        return Sizes(self.n_active, COLUMNS, self.n_latent, self.simple.kinds, self.has_s, self.wants_inputs)


PROBLEMS = [
    Problem(Matern52(np.array([0.8, 1.2, 2.0]), 1.5), 3, 5),
    Problem(Matern32(np.array([0.8, 1.2, 2.0])) + Linear(np.array([0.1, 0.2, 0.3])), 2, 18, 2),
    Problem(Constant(0.5) + Matern(1.3, 0.7, (1, 2, 3)), 1, 40),
    Problem(RBF(1.5) + (Linear(0.1) + Constant(0.2)), 2, 30, wants_inputs=False),
    Problem(Columns(Matern12(np.array([1.0, 2.0])), (2, 0)), 2, 9, has_s=False),
    Problem(RBF(1.5), 1, 1),
    Problem(Matern32(1.0) + Linear(0.3), 1, 100),
]


def on_host(folder, sizes):
    """The kernels, compiled for this machine."""
    source, library = folder / "kernels.cu", folder / "kernels.so"
    source.write_text(gpu.source(sizes), encoding="utf-8")
    macros = [f"-DSIDE={sizes.side}", f'-DKERNELS="{source}"']
    command = ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread", *macros, str(HOST), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "fatal error: barrier" in done.stderr:
        pytest.skip("the compiler is too old")
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


def run(kernels, kernel, sizes, arrays, shapes):
    results = [np.full(shape, np.nan, np.float32) for shape in shapes]
    given = [np.ascontiguousarray(array, np.float32) for array in arrays]
    kind = ctypes.POINTER(ctypes.c_float)
    pointers = (kind * (len(given) + len(results)))(*(array.ctypes.data_as(kind) for array in [*given, *results]))
    keeps_to_its_memory = getattr(kernels, f"run_{kernel}")
    keeps_to_its_memory.restype = ctypes.c_bool
    assert keeps_to_its_memory(pointers, len(given[0]), sizes.shared_bytes(kernel) // 4)
    return results


def by_kernels(folder, problem, given, g):
    """Terms, and derivatives of mean, variance, theta, x and z."""
    x, z, theta, mean, variance = given
    sizes = problem.sizes
    kernels = on_host(folder, sizes)
    *terms, saved = run(kernels, "forward", sizes, given, [*problem.shapes, (problem.n_points, sizes.n_saved)])
    inputs = [np.shape(x), np.shape(z)] if problem.wants_inputs else [(0,), (0,)]
    shapes = [np.shape(mean), np.shape(variance), (problem.n_points, len(theta)), *inputs]
    d_mean, d_variance, d_theta, *d_inputs = run(kernels, "backward", sizes, (x, z, theta, variance, saved, *g), shapes)
    return [*terms[: 3 if problem.has_s else 2], d_mean, d_variance, d_theta.sum(axis=0), *d_inputs]


def by_operations(problem, given, g, dtype):
    """The same by the operations for CPUs."""
    given = [jnp.asarray(part, dtype) for part in given]
    terms, back = jax.vjp(lambda *parts: fused.local_terms(*parts, problem.simple.kinds), *given)
    d_x, d_z, d_theta, d_mean, d_variance = back(type(terms)(*(jnp.asarray(part, dtype) for part in g)))
    inputs = [d_x, d_z] if problem.wants_inputs else [np.zeros(0), np.zeros(0)]
    return [np.asarray(part) for part in (*terms[: 3 if problem.has_s else 2], d_mean, d_variance, d_theta, *inputs)]


@needs_compiled
@needs_compiler
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: f"{type(p.covariance).__name__}-{p.n_active}")
def test_as_on_a_cpu(float64, rng, tmp_path, problem):
    given, g = problem.sample(rng)
    expected = by_operations(problem, given, g, np.float64)
    for ours, other in zip(by_kernels(tmp_path, problem, given, g), expected, strict=True):
        np.testing.assert_allclose(ours, other, atol=2e-4 * np.abs(other).max(initial=1e-3), rtol=0)


@needs_compiled
@needs_compiler
def test_no_less_accurate_than_a_factor_with_as_little_jitter_as_in_training(float64, rng, tmp_path):
    problem = Problem(Matern52(3.0), 1, 60, nugget=0.0, jitter=1e-5)
    given, g = problem.sample(rng)
    exact, plain = (by_operations(problem, given, g, dtype) for dtype in (np.float64, np.float32))
    for ours, other, true in zip(by_kernels(tmp_path, problem, given, g), plain, exact, strict=True):
        scale = np.abs(true).max()
        assert np.abs(ours - true).max() / scale < 3 * np.abs(other - true).max() / scale + 1e-5


@needs_compiled
@needs_compiler
def test_points_that_coincide_and_points_far_away(float64, rng, tmp_path):
    problem = Problem(Matern12(1.0), 1, 6)
    given, g = problem.sample(rng)
    x, z = given[:2]
    z[:, 1], z[:, 2], z[:, 3] = z[:, 0], x, 1e15
    expected = by_operations(problem, given, g, np.float64)
    for ours, other in zip(by_kernels(tmp_path, problem, given, g), expected, strict=True):
        np.testing.assert_allclose(ours, other, atol=2e-4 * np.abs(other).max(), rtol=0)


@needs_compiler
@pytest.mark.parametrize("nugget", [0.0, -0.5])
def test_no_number_comes_of_a_matrix_that_is_not_positive_definite(rng, tmp_path, nugget):
    """Two inducing inputs that coincide, without jitter, or with less than none."""
    sizes = Sizes(3, 1, 1, kinds=8)
    z = np.array([0.0, 0.0, 1.0]).reshape(1, 3, 1)
    theta = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, nugget, 0.0]
    given = (np.zeros((1, 1)), z, theta, rng.normal(size=(1, 3, 1)), np.ones((1, 3, 1)))
    shapes = [(1, 1), (1, 1), (1,), (1, sizes.n_saved)]
    for part in run(on_host(tmp_path, sizes), "forward", sizes, given, shapes)[:3]:
        assert np.isnan(part).all()


@pytest.mark.parametrize(
    ("capability", "sizes"),
    [("7.5", Sizes(20, 4, 1, kinds=31, wants_inputs=True)), ("9.0", Sizes(100, 8, 1, kinds=18, has_s=False))],
)
def test_nvidias_compiler_takes_them(capability, sizes):
    try:
        gpu._library("nvrtc")
    except OSError as trouble:
        pytest.skip(str(trouble))
    assert gpu.compiled(sizes, capability)[1:4] == b"ELF"


@pytest.fixture
def a_gpu(monkeypatch):
    """A machine that says that it has a GPU."""
    device = SimpleNamespace(client=SimpleNamespace(platform_version="cuda 13000"), compute_capability="9.0")
    monkeypatch.setattr(gpu.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(gpu.jax, "local_devices", lambda: [device])
    for cached in (gpu.is_available, gpu._warn):
        cached.cache_clear()
    yield
    for cached in (gpu.is_available, gpu._warn):
        cached.cache_clear()


def test_without_one_there_is_nothing_to_say(monkeypatch):
    monkeypatch.setattr(gpu.jax, "default_backend", lambda: "cpu")
    gpu.is_available.cache_clear()
    assert not gpu.is_available()
    assert not gpu.serves(Sizes(10, 2, 1), np.float32)
    gpu.is_available.cache_clear()


def test_what_cannot_be_used_is_said_once(a_gpu, monkeypatch):
    monkeypatch.setattr(native, "is_built", lambda: False)
    with pytest.warns(FitWarning, match=r"operations for the GPU cannot be used \(they take a C\+\+ compiler"):
        assert not gpu.is_available()
    assert not gpu.is_available()


@needs_compiled
def test_wrong_numbers_are_not_used(a_gpu, monkeypatch):
    monkeypatch.setattr(gpu, "_works", lambda: False)
    with pytest.warns(FitWarning, match="wrong numbers"):
        assert not gpu.is_available()


@needs_compiled
def test_sizes_that_cannot_be_compiled_are_left_to_the_plain_operations(a_gpu, monkeypatch):
    def fails(*_):
        raise OSError("NVRTC could not compile them")

    monkeypatch.setattr(gpu, "_works", lambda: True)
    monkeypatch.setattr(gpu, "_max_shared", lambda: 64 << 10)
    monkeypatch.setattr(gpu, "_loaded", fails)
    assert gpu.is_available()
    with pytest.warns(FitWarning, match="NVRTC could not"):
        assert not gpu.serves(Sizes(10, 2, 1), np.float32)
    # Too large for the memory of a block: nothing to say.
    assert not gpu.serves(Sizes(128, 8, 1), np.float32)


@needs_compiled
def test_the_check_may_come_while_a_program_is_traced(monkeypatch):
    """On this machine the check gets the numbers of the operations for CPUs."""

    def on_cpu(kernel, sizes, shapes, *arrays):
        shapes = [*shapes[:3], (native.n_saved(1, 1, 1, arrays[0].dtype),)] if kernel == "forward" else shapes
        return native.call(kernel, shapes, *arrays, kinds=sizes.kinds)

    monkeypatch.setattr(gpu, "call", on_cpu)
    assert jax.jit(lambda x: x + gpu._works())(1.0) == 2.0


def test_other_numbers_than_float32_are_refused():
    with pytest.raises(TypeError, match="float32"):
        gpu.call("forward", Sizes(1, 1, 1), [], jnp.zeros(1, jnp.int32))
