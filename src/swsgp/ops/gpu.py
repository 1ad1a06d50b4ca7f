"""The local terms on a GPU of NVIDIA: kernels of CUDA (`cuda/`), compiled for the sizes in use when first asked for.

NVIDIA's compiler for programs that run, NVRTC, comes with `swsgp[cuda]`; there need be no other.
"""

import ctypes
import site
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from swsgp.errors import FitWarning
from swsgp.ops import native
from swsgp.shapes import Array

_SOURCE = Path(__file__).parent / "cuda" / "terms.cu"
# CUDA's numbers for the bytes that the threads of a block may share: those of a device, and those of a kernel.
_MAX_SHARED_OF_DEVICE, _MAX_SHARED_OF_KERNEL = 97, 8


class Sizes(NamedTuple):
    """What a kernel is compiled for."""

    n_active: int
    n_columns: int
    n_latent: int
    kinds: int = 0
    has_s: bool = True
    wants_inputs: bool = False

    @property
    def side(self) -> int:
        """Threads along each side of the matrix."""
        return 8 if self.n_active + 1 + self.n_latent <= 32 else 16

    @property
    def each(self) -> int:
        """Rows, and columns, of a thread."""
        return -(-(self.n_active + 1 + self.n_latent) // self.side)

    @property
    def n_saved(self) -> int:
        """Numbers that the forward kernel keeps for the backward one, for each point."""
        return self.each * (self.each + 1) // 2 * self.side**2 + (1 + self.n_latent) * self.n_active

    def shared_bytes(self, kernel: str) -> int:
        """Memory that the threads of a block share; see the beginnings of the kernels."""
        h, q, line, n_warps = self.n_active, self.n_latent, self.side * self.each, self.side**2 // 32
        n = 2 * (h + 1) * self.n_columns
        if kernel == "forward":
            n += 2 * line + (3 + q) * h + 1 + 2 * q + n_warps
        else:
            n += (h + 1) * (line + 1) + (3 + q) * line + 3 * h + n_warps * (2 * self.n_columns + 7)
        return 4 * n


def serves(sizes: Sizes, dtype: Any) -> bool:
    """Whether there is a GPU with kernels for these sizes, which are then loaded."""
    if sizes.n_active > native.MAX_SIZE or dtype != np.float32 or not is_available():
        return False
    try:
        if max(sizes.shared_bytes(kernel) for kernel in ("forward", "backward")) > _max_shared():
            return False
        _loaded("forward", sizes)
        _loaded("backward", sizes)
    except _TROUBLES as trouble:
        _warn(str(trouble))
        return False
    return True


@cache
def is_available() -> bool:
    """Whether there is such a GPU, and the kernels work on it; says so once if they should and do not."""
    device = jax.local_devices()[0]
    if jax.default_backend() != "gpu" or "cuda" not in device.client.platform_version.lower():
        return False
    try:
        if not native.is_built():
            raise OSError("they take a C++ compiler when swsgp is installed")
        if len({device.compute_capability for device in jax.local_devices()}) > 1:
            raise OSError("the GPUs of this machine differ")
        jax.ffi.register_ffi_target("swsgp_launch", native.gpu_operation(), platform="CUDA")
        if not _works():
            raise OSError("they give wrong numbers on this machine")
    except _TROUBLES as trouble:
        _warn(str(trouble))
        return False
    return True


# A library that is missing, one that is too old, and a program that fails on the device.
_TROUBLES = (OSError, AttributeError, jax.errors.JaxRuntimeError)


@cache
def _warn(trouble: str) -> None:
    warnings.warn(
        f"the compiled operations for the GPU cannot be used ({trouble}): the plain ones are used, and are slower.",
        FitWarning,
        stacklevel=4,
    )


def call(kernel: str, sizes: Sizes, shapes: list[tuple[int, ...]], *arrays: Array) -> Any:
    """The results, of these shapes, of the kernel "forward" or "backward", with a block of threads for each point."""
    if any(array.dtype != np.float32 for array in arrays):
        raise TypeError("the operations for the GPU take float32; ask `fused.usable` first.")
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    operation = jax.ffi.ffi_call("swsgp_launch", results, vmap_method="sequential")
    return operation(*arrays, kernel=_loaded(kernel, sizes), n_points=np.int64(len(arrays[0])))


def _works() -> bool:
    """One point at 0 with one inducing variable at 1: k = e⁻¹, m = 2, S = 0.25, and K = 1; and dE[f]/dm = e⁻¹."""
    sizes = Sizes(1, 1, 1, kinds=1)
    one, packed = np.ones((1, 1, 1)), np.array([1.0, 0, 1, 0, 0, 0, 0, 0, 0])
    shapes: list[tuple[int, ...]] = [(1, 1), (1, 1), (1,), (1, sizes.n_saved)]
    # The first to ask may be a program that is being traced.
    with jax.ensure_compile_time_eval():
        x, z, theta, mean, variance, g = (
            jnp.asarray(part, jnp.float32) for part in (0 * one[0], one, packed, 2 * one, 0.25 * one, one[0])
        )
        f_mean, f_variance, kl, saved = call("forward", sizes, shapes, x, z, theta, mean, variance)
        shapes = [(1, 1, 1), (1, 1, 1), (1, 9), (0,), (0,)]
        d_mean = call("backward", sizes, shapes, x, z, theta, variance, saved, g, 0 * g, 0 * g[0])[0]
        found = [float(np.asarray(part).ravel()[0]) for part in (f_mean, f_variance, kl, d_mean)]
    expected = [2 * np.exp(-1), 1 - 0.75 * np.exp(-2), 0.5 * (0.25 + 4 - 1 - np.log(0.25)), np.exp(-1)]
    return bool(np.allclose(found, expected, rtol=1e-4))


@cache
def _max_shared() -> int:
    """Bytes that the threads of a block may share."""
    found = ctypes.c_int()
    device = jax.local_devices()[0].local_hardware_id
    _check("ask about", _library("cuda").cuDeviceGetAttribute(ctypes.byref(found), _MAX_SHARED_OF_DEVICE, device))
    return found.value


@cache
def _loaded(kernel: str, sizes: Sizes) -> str:
    """The name under which a kernel is known once it is compiled and loaded, on all GPUs."""
    name = "_".join([kernel, *(str(int(size)) for size in sizes)])
    cuda = _library("cuda")
    image = compiled(sizes, jax.local_devices()[0].compute_capability)
    library, function = ctypes.c_void_p(), ctypes.c_void_p()
    nothing = (None, None, 0)
    _check("load", cuda.cuLibraryLoadData(ctypes.byref(library), image, *nothing, *nothing))
    _check("find", cuda.cuLibraryGetKernel(ctypes.byref(function), library, kernel.encode()))
    shared = sizes.shared_bytes(kernel)
    for device in jax.local_devices():
        code = cuda.cuKernelSetAttribute(_MAX_SHARED_OF_KERNEL, shared, function, device.local_hardware_id)
        _check("set up", code)
    launch = ctypes.cast(cuda.cuLaunchKernel, ctypes.c_void_p)
    native.add_gpu_kernel(name, function.value or 0, launch.value or 0, sizes.side**2, shared)
    return name


def source(sizes: Sizes) -> str:
    """The kernels for these sizes."""
    names = ("H", "D", "Q", "KINDS", "HAS_S", "WANTS_INPUTS", "SIDE", "R")
    values = (*sizes, sizes.side, sizes.each)
    lines = [f"#define {name} {int(value)}\n" for name, value in zip(names, values, strict=True)]
    return "".join(lines) + _SOURCE.read_text(encoding="utf-8")


@cache
def compiled(sizes: Sizes, capability: str) -> bytes:
    """The kernels, compiled for GPUs of this capability, as "9.0"."""
    nvrtc = _library("nvrtc")
    program = ctypes.c_void_p()
    given = (source(sizes).encode(), b"terms.cu", 0, None, None)
    _check("read", nvrtc.nvrtcCreateProgram(ctypes.byref(program), *given))
    options = [f"--gpu-architecture=sm_{capability.replace('.', '')}".encode(), b"--std=c++17"]
    code = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    try:
        if code:
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise OSError(f"NVRTC could not compile them: {log.value.decode(errors='replace').strip()}")
        _check("compile", nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        image = ctypes.create_string_buffer(size.value)
        _check("compile", nvrtc.nvrtcGetCUBIN(program, image))
        return image.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _check(what: str, code: int) -> None:
    if code:
        raise OSError(f"CUDA could not {what} them, error {code}")


@cache
def _library(name: str) -> ctypes.CDLL:
    """A library of CUDA: the driver's, or one that came with a package or with CUDA itself."""
    if name == "cuda":
        return ctypes.CDLL("libcuda.so.1")
    folders = [Path(folder) for folder in (*site.getsitepackages(), *sys.path) if folder]
    for path in [path for folder in folders for path in sorted(folder.glob(f"nvidia/*/lib/lib{name}.so.[0-9]*"))]:
        # NVRTC looks for a part of itself by name alone, and finds it if it is loaded.
        for part in path.parent.glob(f"lib{name}-builtins.so.[0-9]*"):
            ctypes.CDLL(str(part), ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(path))
    for plain in (f"lib{name}.so", f"lib{name}.so.13", f"lib{name}.so.12"):
        try:
            return ctypes.CDLL(plain)
        except OSError:
            continue
    raise OSError(f"lib{name} was not found; pip install nvidia-cuda-nvrtc brings it, as swsgp[cuda] does")
