"""The local terms in one compiled operation: gathered inputs in, q(f) and KL out, with the gradient.

On a CPU the operations are written in C++ (`cpp/`), with one point in each lane of the processor's vectors, and on
a GPU of NVIDIA in CUDA (`cuda/`), with a block of threads for each point: several times as fast as many small matrices
one after the other. They know covariances that are a sum of Matérns and a squared exponential of one distance, a linear
part and a constant (`Simple`). For others, on other devices, and where they were not built, the functions of `local.py`
do the same; these are the reference.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from swsgp.ops import gpu, native
from swsgp.ops.local import LocalTerms
from swsgp.shapes import Array, Float, Int, Scalar


class Simple(NamedTuple):
    r"""A covariance that the operations know.

    $\sum_t w_t\, m_t(r) + \sum_d v_d x_d y_d + c$ with $r^2 = \sum_d (x_d - y_d)^2 / \ell_d^2$ and m the profiles of
    Matérn-1/2, 3/2, 5/2 and the squared exponential. `kinds` has a bit for each weight in use, and 16 for v.
    """

    kinds: int
    inverse_lengthscales: Float[Array, " D"]
    linear: Float[Array, " D"]
    weights: Float[Array, " 4"]
    constant: Scalar

    def packed(self, nugget: float | Scalar, jitter: float | Scalar) -> Float[Array, " P"]:
        """All numbers in one array, with what is added to the diagonal of K: a nugget, and jitter relative to it."""
        last = jnp.stack([jnp.asarray(part, self.weights.dtype) for part in (self.constant, nugget, jitter)])
        return jnp.concatenate([self.inverse_lengthscales, self.linear, self.weights, last])


def usable(
    simple: Simple | None,
    n_active: int,
    n_latent: int,
    dtype: Any,
    *,
    has_variance: bool = True,
    has_all: bool = False,
) -> Simple | None:
    """The covariance, if `local_terms` is there for it and for these sizes on the device in use.

    Where u has covariances, too, that is a CPU.
    """
    if simple is None:
        return None
    if jax.default_backend() == "cpu":
        return simple if n_active <= native.MAX_SIZE and native.is_available() else None
    if has_all:
        return None
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined]
    if chosen is not None and getattr(chosen, "platform", chosen) not in ("gpu", "cuda"):
        return None
    sizes = gpu.Sizes(n_active, len(simple.linear), n_latent, simple.kinds, has_variance)
    return simple if gpu.serves(sizes, dtype) else None


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def local_terms(
    x: Float[Array, "B D"],
    z: Float[Array, "B H D"],
    theta: Float[Array, " P"],
    mean: Float[Array, "B H Q"],
    variance: Float[Array, "B *S"],
    kinds: int,
) -> LocalTerms:
    """q(f) of points with active sets of their own, and the KL of each, (B,).

    `theta` is a packed `Simple`. The variance of u is (B, H, Q), or (B, Q, H, H) if it has covariances, too. Without
    one, of shape (B, 0, Q), the values `mean` are known: q(f) is then the conditional of f, and the KL means nothing.
    """
    return _forward(x, z, theta, mean, variance, kinds)[0]


def _forward(x, z, theta, mean, variance, kinds):  # type: ignore[no-untyped-def]
    n_points, n_active, n_latent = mean.shape
    shapes = [(n_points, n_latent), (n_points, n_latent), (n_points,)]
    if jax.default_backend() == "cpu":
        shapes += [(native.n_saved(n_points, n_active, n_latent, x.dtype),)]
        f_mean, f_variance, kl, saved = native.call("forward", shapes, x, z, theta, mean, variance, kinds=kinds)
    else:
        sizes = _sizes(z, mean, variance, kinds)
        shapes += [(n_points, sizes.n_saved)]
        f_mean, f_variance, kl, saved = gpu.call("forward", sizes, shapes, x, z, theta, mean, variance)
    return LocalTerms(f_mean, f_variance, kl), saved


def _sizes(z: Array, mean: Array, variance: Array, kinds: int, wants_inputs: bool = False) -> gpu.Sizes:
    _, n_active, n_columns = z.shape
    return gpu.Sizes(n_active, n_columns, mean.shape[2], kinds, variance.shape[1] > 0, wants_inputs)


def _forward_rule(x, z, theta, mean, variance, kinds):  # type: ignore[no-untyped-def]
    wants_inputs = x.perturbed or z.perturbed
    values = [part.value for part in (x, z, theta, mean, variance)]
    terms, saved = _forward(*values, kinds)  # type: ignore[call-arg]
    # An empty array says that derivatives of inputs are not wanted.
    return terms, (*values, saved, jnp.zeros((int(wants_inputs), 0)))


def _backward_rule(kinds, residuals, g):  # type: ignore[no-untyped-def]
    x, z, theta, mean, variance, saved, wants_inputs = residuals
    n_points, _, n_latent = mean.shape
    none = (0,)
    inputs = (x.shape, z.shape) if wants_inputs.shape[0] else (none, none)
    shapes = [mean.shape, variance.shape, (n_points, theta.shape[0]), *inputs]
    like = ((n_points, n_latent), (n_points, n_latent), (n_points,))
    cotangents = [_dense(part, shape, x.dtype) for part, shape in zip(g, like, strict=True)]
    given = (x, z, theta, variance, saved, *cotangents)
    if jax.default_backend() == "cpu":
        results = native.call("backward", shapes, *given, kinds=kinds)
    else:
        sizes = _sizes(z, mean, variance, kinds, wants_inputs=wants_inputs.shape[0] > 0)
        results = gpu.call("backward", sizes, shapes, *given)
    d_mean, d_variance, d_theta, d_x, d_z = results
    if not wants_inputs.shape[0]:
        d_x, d_z = jnp.zeros_like(x), jnp.zeros_like(z)
    return d_x, d_z, jnp.sum(d_theta, axis=0), d_mean, d_variance


def _dense(cotangent: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    is_zero = isinstance(cotangent, jax.custom_derivatives.SymbolicZero)
    return jnp.zeros(shape, dtype) if is_zero else cotangent


local_terms.defvjp(_forward_rule, _backward_rule, symbolic_zeros=True)


class Conditionals(NamedTuple):
    """Of points with active sets of their own: a = K⁻¹k, what is left of k(x, x), and, if asked for, K⁻¹ and log|K|."""

    weights: Float[Array, "B H"]
    remainder: Float[Array, " B"]
    precision: Float[Array, "B H H"]
    log_det: Float[Array, " B"]


def conditionals(
    x: Float[Array, "B D"],
    z: Float[Array, "B H D"],
    theta: Float[Array, " P"],
    kinds: int,
    features: tuple[Float[Array, "M G"], Int[Array, "B H"], Float[Array, "B G"]] | None = None,
    *,
    whole: bool,
) -> Conditionals:
    """Weights and remainders; the `whole` system has K⁻¹ and log|K|, too. For CPUs alone.

    `features` are those of all inducing inputs, where those of each point are among them, and those of the points;
    their products are taken off K, k and k(x, x).
    """
    n_points, n_active = z.shape[:2]
    shapes: list[tuple[int, ...]] = [(n_points, n_active), (n_points,)]
    shapes += [(n_points, n_active, n_active), (n_points,)] if whole else [(0,), (0,)]
    if features is None:
        none = jnp.zeros((0, 0), x.dtype)
        features = none, jnp.zeros((0, 0), jnp.int32), none
    return Conditionals(*native.call("system", shapes, x, z, theta, *features, kinds=kinds))
