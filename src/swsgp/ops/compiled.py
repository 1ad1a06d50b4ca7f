"""How swsgp compiles its programs."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import equinox as eqx

# XLA's YNN fusions, on by default on CPUs since jaxlib 0.10.2, wait for each other on machines with few cores:
# training on two cores stops for ever within seconds. An empty list switches them off, for our programs only.
_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """`function`, compiled for each new combination of shapes; arguments that are not arrays are constants."""
    # Equinox hands further options on to `jax.jit`, though its types do not say so.
    return cast(F, eqx.filter_jit(function, compiler_options=_OPTIONS))  # type: ignore[call-overload]
