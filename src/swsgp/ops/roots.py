"""Products of a few rows of a large lower triangular matrix, in one compiled operation for CPUs."""

from typing import Any

import jax
import jax.numpy as jnp

from swsgp.ops import native
from swsgp.shapes import Array, Float, Int


@jax.custom_vjp
def products(
    lower: Float[Array, "Q P"], diagonal: Float[Array, "M Q"], index: Int[Array, "B H"]
) -> Float[Array, "B Q H H"]:
    r"""$L_w L_w^\top$ for the rows `index` of L, of each point and each latent function.

    `lower` has the rows under the diagonals one after the other, row i from position i(i-1)/2 on.
    """
    n_points, n_active = index.shape
    shape = (n_points, len(lower), n_active, n_active)
    found: Array = native.call("products", [shape], lower, diagonal, index.astype(jnp.int32))[0]
    return found


def _forward(lower: Array, diagonal: Array, index: Array) -> tuple[Array, Any]:
    return products(lower, diagonal, index), (lower, diagonal, index)


def _backward(given: Any, g: Array) -> tuple[Array, Array, None]:
    lower, diagonal, index = given
    shapes = [lower.shape, diagonal.shape]
    d_lower, d_diagonal = native.call("products_backward", shapes, lower, diagonal, index.astype(jnp.int32), g)
    return d_lower, d_diagonal, None


products.defvjp(_forward, _backward)
