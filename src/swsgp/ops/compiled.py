"""How swsgp compiles and runs its programs."""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import jax

# XLA's YNN fusions, on by default on CPUs since jaxlib 0.10.2, hang or crash on some programs. An empty list
# switches them off, for our programs only.
_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}

# jaxlib's batched LAPACK calls wait for work that they queue on their own thread pool: as many of them at once as
# there are threads wait for ever. So programs run one at a time, and each is written to have one such call in
# flight (see `one_at_a_time`).
_ONE_PROGRAM = threading.RLock()


def jit(function: Callable[..., Any], constant: str | tuple[str, ...] | None = None) -> Callable[..., Any]:
    """`function`, compiled for each new combination of shapes, and of values of the arguments named `constant`.

    Arrays may come from the host or the device.
    """

    @wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        # Float32 means float32: a GPU would otherwise round the factors of a product to 10 bits.
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    compiled = jax.jit(traced, static_argnames=constant, compiler_options=_OPTIONS)

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _ONE_PROGRAM:
            return jax.block_until_ready(compiled(*args, **kwargs))

    return run


def one_at_a_time(waits: Any, before: Any) -> Any:
    """The array `waits`, unchanged, but not ready for use until the array `before` is."""
    # Adding nothing is the one dependency that the compiler keeps; a product with 0 might be NaN, so it must.
    return waits + 0.0 * before.sum()


class Structure:
    """How the arrays of a model make up the model, as a constant of a compiled program.

    JAX takes a model apart in Python at each call, which takes longer than the prediction of a row. A program that
    is called often takes the arrays and this instead.
    """

    def __init__(self, definition: Any):
        self._definition = definition
        self._hash = hash(definition)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Structure) and self._definition == other._definition)

    def together(self, arrays: Any) -> Any:
        """The model with these arrays."""
        return jax.tree.unflatten(self._definition, arrays)
