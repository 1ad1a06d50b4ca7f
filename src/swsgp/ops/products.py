"""Products of small matrices, fast where a CPU would otherwise call a matrix library once for each of them."""

import jax
import jax.numpy as jnp

from swsgp.shapes import Array, Float

# Factors up to this size are multiplied by one fused sum over the whole batch (measured on a CPU, 4 to 16).
_TINY = 8


def product(a: Float[Array, "I J"], b: Float[Array, "J K"]) -> Float[Array, "I K"]:
    """a @ b."""
    if max(a.shape) <= _TINY or a.shape[1] == 1:
        return jnp.sum(a[:, :, None] * b[None, :, :], axis=1)
    return a @ b


@jax.custom_vjp
def gram(rows: Float[Array, "H C"]) -> Float[Array, "H H"]:
    r"""$RR^\top$, with a gradient of one product where differentiating through it would take two."""
    if rows.shape[0] <= _TINY:
        return jnp.sum(rows[:, None, :] * rows[None, :, :], axis=-1)
    return jnp.einsum("hc,kc->hk", rows, rows)


gram.defvjp(lambda rows: (gram(rows), rows), lambda rows, g: (product(g + g.T, rows),))
