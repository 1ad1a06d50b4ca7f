"""The types of arrays: their shapes, written with jaxtyping, and their precision.

Sizes are always called N (data points), B (points of a mini-batch), M (inducing points), H (active
inducing points of one group), R (points that share a group), D (columns) and Q (latent functions).
"""

from contextlib import AbstractContextManager

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from swsgp.errors import SettingError

Scalar = Float[Array, ""]
# A parameter is a NumPy array until a model takes it into its own precision.
Parameter = Float[Array | np.ndarray, "..."]
PRECISIONS = ("float32", "float64")

__all__ = ["Array", "Float", "Int", "Parameter", "Scalar", "check_precision", "precision_scope"]


def check_precision(precision: str) -> None:
    """Refuse any precision but the two that are offered."""
    if precision not in PRECISIONS:
        raise SettingError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}.")


def precision_scope(precision: str) -> AbstractContextManager[object]:
    """A scope in which JAX computes in this precision; the caller's own JAX setting is untouched."""
    return jax.enable_x64(precision == "float64")
