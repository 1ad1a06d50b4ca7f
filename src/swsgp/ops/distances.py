"""Squared distances between two sets of points, with a gradient that never holds all differences."""

import jax
import jax.numpy as jnp

from swsgp.ops.products import product
from swsgp.shapes import Array, Float

# Above this many differences (16 million: 64 MB in float32) the squares are expanded into a matrix product.
_MAX_DIFFERENCES = 1 << 24


@jax.custom_vjp
def squared_distances(x: Float[Array, "R D"], z: Float[Array, "H D"]) -> Float[Array, "R H"]:
    r"""$r_{ij} = \|x_i - z_j\|^2$."""
    return _squared_distances(x, z)


@jax.custom_vjp
def squared_distances_within(z: Float[Array, "H D"]) -> Float[Array, "H H"]:
    """Squared distances between all pairs of one set, with a gradient of half the cost."""
    return _squared_distances(z, z)


def _squared_distances(x: Array, z: Array) -> Array:
    """Small sets subtract before squaring: ‖x‖² + ‖z‖² − 2xᵀz cancels for close points, and in float32 that is
    enough to make a covariance matrix indefinite. Large sets cannot afford it, so they are centred, which keeps
    most of the digits, and expanded.
    """
    if x.shape[0] * z.shape[0] * x.shape[1] <= _MAX_DIFFERENCES:
        # The longer axis goes last, where it vectorises.
        if x.shape[1] > z.shape[0]:
            return jnp.sum((x[:, None, :] - z[None, :, :]) ** 2, axis=-1)
        return jnp.sum((x.T[:, :, None] - z.T[:, None, :]) ** 2, axis=0)
    centre = jnp.mean(z, axis=0)
    x, z = x - centre, z - centre
    squares = jnp.sum(x**2, axis=-1)[:, None] + jnp.sum(z**2, axis=-1)[None, :]
    return jnp.maximum(squares - 2.0 * x @ z.T, 0.0)


def _backward(saved, g):  # type: ignore[no-untyped-def]
    # d r_ij / d x_i = 2 (x_i - z_j): two small matrix products instead of an (R, H, D) array.
    x, z = saved
    return 2.0 * (jnp.sum(g, 1)[:, None] * x - product(g, z)), 2.0 * (jnp.sum(g, 0)[:, None] * z - product(g.T, x))


def _backward_within(z, g):  # type: ignore[no-untyped-def]
    g = g + g.T
    return (2.0 * (jnp.sum(g, 1)[:, None] * z - product(g, z)),)


squared_distances.defvjp(lambda x, z: (squared_distances(x, z), (x, z)), _backward)
squared_distances_within.defvjp(lambda z: (squared_distances_within(z), z), _backward_within)
