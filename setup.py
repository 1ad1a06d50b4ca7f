"""The compiled operations, built where there is a compiler. Without them swsgp does the same, more slowly."""

from pathlib import Path

import jax.ffi
from setuptools import Extension, setup

folder = Path("src/swsgp/ops/cpp")

setup(
    ext_modules=[
        Extension(
            "swsgp.ops._native",
            sources=sorted(str(path) for path in folder.glob("*.cpp")),
            depends=sorted(str(path) for path in folder.glob("*.hpp")),
            include_dirs=[jax.ffi.include_dir()],
            # Vectors wider than the baseline of the machine never cross a function that is not inlined.
            extra_compile_args=["-O3", "-std=c++17", "-fno-math-errno", "-Wno-psabi"],
            language="c++",
            py_limited_api=True,
            optional=True,
        )
    ]
)
