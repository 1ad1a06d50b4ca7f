"""Small models with a random q(u), for tests."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from swsgp import Gaussian, Matern52, bound, create
from swsgp.shapes import precision_scope

N, D, M, H = 12, 2, 7, 3
LENGTHSCALE, VARIANCE, NOISE, JITTER = np.array([0.8, 1.5]), 1.3, 0.2, 1e-8


def toy(rng, n=N, d=D):
    x = rng.normal(size=(n, d))
    return x, np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=n)


def make(x, active, form="full", n_inducing=M, likelihood=None, seed=0, **options):
    """A model in float64 with a random q(u)."""
    rng = np.random.default_rng(seed)
    precision = options.pop("precision", "float64")
    model = create(
        x,
        options.pop("covariance", Matern52(LENGTHSCALE[: x.shape[1]], VARIANCE)),
        likelihood or Gaussian(NOISE),
        active,
        n_inducing=n_inducing,
        covariance_form=form,
        placement=options.pop("placement", "subset"),
        precision=precision,
        **options,
    )
    leaves, structure = jax.tree.flatten(model.variational)
    with precision_scope(precision):
        moved = [leaf + 0.3 * rng.normal(size=leaf.shape).astype(leaf.dtype) for leaf in leaves]
        return eqx.tree_at(lambda m: m.variational, model, structure.unflatten(moved))


@eqx.filter_jit
def estimate(model, x, y, n_data=None, kl_scale=1.0):
    """The bound from one batch, with the active sets that training would use."""
    x, y = jnp.asarray(x, model.inducing.dtype), jnp.asarray(y, model.inducing.dtype)
    return bound(model, x, y, model.active_set(x), n_data or len(x), kl_scale)


def dense_q_u(model):
    everything = jnp.arange(len(model.inducing))
    return np.asarray(model.variational.mean)[:, 0], np.asarray(model.variational.covariance(everything))[0]


def with_full_q_u(model, mean, cov):
    """The model with q(u) = N(mean, cov), for a full covariance and one latent function."""
    n = len(mean)
    chol = np.linalg.cholesky(cov)
    lower = np.zeros(model.variational.lower.size)
    lower[: n * (n - 1) // 2] = chol[np.tril_indices(n, -1)]
    return eqx.tree_at(
        lambda m: (m.variational.mean, m.variational.log_diagonal, m.variational.lower),
        model,
        (
            jnp.asarray(mean)[:, None],
            jnp.log(jnp.diag(chol))[:, None],
            jnp.asarray(lower).reshape(model.variational.lower.shape),
        ),
    )
