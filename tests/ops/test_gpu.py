"""The kernels for GPUs: their arithmetic, run on the host, against the operations for CPUs; and how they are found."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from swsgp import RBF, Constant, Linear, Matern, Matern12, Matern32, Matern52
from swsgp.errors import FitWarning
from swsgp.gp.model import with_precision
from swsgp.ops import fused, gpu, native
from swsgp.ops.gpu import Sizes

needs_compiled = pytest.mark.skipif(native._native is None, reason="the compiled operations were not built")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler")
HOST = Path(__file__).parent / "cuda_on_host.cpp"
CASES = [
    (Matern52(np.array([0.8, 1.2, 2.0]), 1.5), 3, 5, 1, True),
    (Matern32(np.array([0.8, 1.2, 2.0])) + Linear(np.array([0.1, 0.2, 0.3])), 2, 18, 2, True),
    (Constant(0.5) + Matern(1.3, 0.7, (1, 2, 3)), 1, 40, 1, True),
    (RBF(1.5) + (Linear(0.1) + Constant(0.2)), 2, 30, 1, True),
    (Matern12(np.array([1.0, 2.0, 1.0])), 2, 9, 3, False),
]


def on_host(folder, sizes):
    """The kernels, compiled for this machine."""
    source, library = folder / "kernels.cu", folder / "kernels.so"
    source.write_text(gpu.source(sizes), encoding="utf-8")
    macros = [f"-DSIDE={sizes.side}", f'-DKERNELS="{source}"']
    command = ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread", *macros, str(HOST), "-o", str(library)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def run(kernel, n_points, arrays, shapes):
    results = [np.full(shape, np.nan, np.float32) for shape in shapes]
    given = [np.ascontiguousarray(array, np.float32) for array in arrays]
    kind = ctypes.POINTER(ctypes.c_float)
    pointers = (kind * (len(given) + len(results)))(*(array.ctypes.data_as(kind) for array in [*given, *results]))
    kernel(pointers, n_points)
    return results


@needs_compiled
@needs_compiler
@pytest.mark.parametrize(("covariance", "b", "h", "q", "has_s"), CASES, ids=lambda value: type(value).__name__)
def test_as_on_a_cpu(float64, rng, tmp_path, covariance, b, h, q, has_s):
    d = 3
    x = rng.normal(size=(b, d))
    z = x[:, None] + 0.7 * rng.normal(size=(b, h, d))
    mean = rng.normal(size=(b, h, q))
    variance = np.exp(rng.normal(size=mean.shape) - 2.0) if has_s else np.zeros((b, 0, q))
    simple = with_precision(covariance, "float64").simple(d)
    theta = simple.packed(0.01, 1e-3)
    given = [jnp.asarray(part) for part in (x, z, theta, mean, variance)]
    expected, back = jax.vjp(lambda *parts: fused.local_terms(*parts, simple.kinds), *given)
    g = [rng.normal(size=part.shape) for part in expected]
    if not has_s:
        g[2][:] = 0.0
    d_x, d_z, d_theta, d_mean, d_variance = back(type(expected)(*(jnp.asarray(part) for part in g)))

    sizes = Sizes(h, d, q, simple.kinds, has_s, wants_inputs=True)
    kernels = on_host(tmp_path, sizes)
    *terms, saved = run(kernels.run_forward, b, given, [(b, q), (b, q), (b,), (b, sizes.n_saved)])
    shapes = [(b, h, q), variance.shape, (b, len(theta)), (b, d), (b, h, d)]
    derivatives = run(kernels.run_backward, b, (x, z, theta, variance, saved, *g), shapes)
    derivatives[2] = derivatives[2].sum(axis=0)
    n_terms = 3 if has_s else 2
    wanted = [*expected[:n_terms], d_mean, d_variance, d_theta, d_x, d_z]
    for ours, other in zip([*terms[:n_terms], *derivatives], wanted, strict=True):
        other = np.asarray(other)
        np.testing.assert_allclose(ours, other, atol=2e-4 * np.abs(other).max(initial=1e-3), rtol=0)


@needs_compiler
def test_no_number_comes_of_a_matrix_that_is_not_positive_definite(rng, tmp_path):
    """Two inducing inputs that coincide, without jitter."""
    sizes = Sizes(3, 1, 1, kinds=8)
    z = np.array([0.0, 0.0, 1.0]).reshape(1, 3, 1)
    theta = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    given = (np.zeros((1, 1)), z, theta, rng.normal(size=(1, 3, 1)), np.ones((1, 3, 1)))
    _, variance, kl, _ = run(on_host(tmp_path, sizes).run_forward, 1, given, [(1, 1), (1, 1), (1,), (1, sizes.n_saved)])
    assert not np.isfinite(variance).any()
    assert not np.isfinite(kl).any()


@pytest.mark.parametrize("capability", ["7.5", "9.0"])
def test_nvidias_compiler_takes_them(capability):
    try:
        image = gpu.compiled(Sizes(20, 4, 1, kinds=31, wants_inputs=True), capability)
    except OSError as trouble:
        pytest.skip(str(trouble))
    assert image[1:4] == b"ELF"


def test_shared_memory_is_enough_for_what_the_kernels_lay_out():
    """The last place that each kernel names, as it is written there."""
    sizes = Sizes(100, 8, 2)
    line, stride, h, d, q, n_warps = 112, 113, 100, 8, 2, 8
    assert sizes.side * sizes.each == line
    forward = 2 * (h + 1) * d + 2 * line + h + h + q * h + h + (1 + 2 * q) + n_warps
    backward = 2 * (h + 1) * d + (h + 1) * stride + (3 + q) * line + 3 * h + n_warps * (2 * d + 7)
    assert (sizes.shared_bytes("forward"), sizes.shared_bytes("backward")) == (4 * forward, 4 * backward)


@pytest.fixture
def a_gpu(monkeypatch):
    """A machine that says that it has a GPU."""
    device = SimpleNamespace(client=SimpleNamespace(platform_version="cuda 13000"))
    monkeypatch.setattr(gpu.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(gpu.jax, "devices", lambda: [device])
    gpu.is_available.cache_clear()
    yield
    gpu.is_available.cache_clear()


def test_without_one_there_is_nothing_to_say():
    gpu.is_available.cache_clear()
    assert not gpu.is_available()
    assert not gpu.serves(Sizes(10, 2, 1), np.float32)


def test_kernels_that_cannot_be_used_are_named_once(a_gpu, monkeypatch):
    monkeypatch.setattr(native, "is_built", lambda: False)
    with pytest.warns(FitWarning, match=r"kernels for the GPU cannot be used: they take a C\+\+ compiler"):
        assert not gpu.is_available()
    assert not gpu.is_available()


@needs_compiled
def test_wrong_numbers_are_not_used(a_gpu, monkeypatch):
    monkeypatch.setattr(gpu, "_works", lambda: False)
    with pytest.warns(FitWarning, match="wrong numbers"):
        assert not gpu.is_available()
