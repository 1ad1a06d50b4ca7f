"""Local GPs: many small exact GPs, each with hyper-parameters of its own, where its centre is the nearest.

Centres come from k-means, and the GP of a centre learns from the training rows nearest to it. A prediction takes the
hyper-parameters of the centre nearest to the point. *Inductive* local GPs (Kim et al. 2005) condition on the rows of
that centre; *transductive* ones (Urtasun and Darrell 2008) on the rows nearest to the point itself. Neither knows
anything of the rows beyond.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from threadpoolctl import threadpool_limits

from swsgp.arrays import inputs_for, pair_for, power_of_two_below
from swsgp.baselines.exact import Prior, starting_prior
from swsgp.baselines.predictive import in_chunks
from swsgp.errors import NumericalError, SettingError
from swsgp.fit.progress import ProgressBar
from swsgp.fit.settings import Settings
from swsgp.fit.stopping import Clock, Report
from swsgp.gp.covariances import Covariance, sensitivity
from swsgp.gp.inducing import starting_inputs
from swsgp.gp.likelihoods import Gaussian
from swsgp.ops.compiled import jit
from swsgp.ops.local import conditional
from swsgp.ops.nearest import Search
from swsgp.shapes import Array, Float, Int, precision_scope

KINDS = ("inductive", "transductive")
_ADAM = optax.scale_by_adam()
# Steps of one dispatch, after which progress is shown.
_AT_ONCE = 50
# Numbers held at once in the matrices of a chunk: 32 MB.
_MAX_NUMBERS = 1 << 22


class LocalGPs(eqx.Module):
    """Experts with their centres: every array in `priors` has one entry, or row, for each expert."""

    priors: Prior
    centres: Float[Array | np.ndarray, "E D"]
    members: Int[Array | np.ndarray, "E P"]
    x: Float[Array | np.ndarray, "N D"]
    y: Float[Array | np.ndarray, " N"]
    kind: str = eqx.field(static=True)

    @property
    def likelihood(self) -> Gaussian:
        """That of the expert with the least noise; what another has beyond it counts to its latent variance."""
        return Gaussian(float(np.exp(np.asarray(self.priors.likelihood.log_noise).min())))

    def latent(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of f at each point, (len(x), 1) each; of the noise, what is beyond the least is in it."""
        x = inputs_for(x, self.x.shape[1], "float64")
        n_points = self.members.shape[1]
        centres, rows, values = (np.asarray(part) for part in (self.centres, self.x, self.y))
        with precision_scope("float64"), _one_thread_per_matrix():
            to_centre = nearest(centres)
            to_row = nearest(rows)

            def compute(points: np.ndarray) -> tuple[Array, Array]:
                expert = to_centre(points, 1)[:, 0]
                near = np.asarray(self.members)[expert] if self.kind == "inductive" else to_row(points, n_points)
                return _latent(self.priors, expert, rows[near], values[near], points)

            return in_chunks(compute, x, power_of_two_below(max(1, _MAX_NUMBERS // n_points**2)))

    def sensitivity(self) -> np.ndarray:
        """How fast the function varies along each column, on average over the experts."""
        covariances = [
            jax.tree.map(lambda leaf, i=i: leaf[i], self.priors).covariance for i in range(len(self.centres))
        ]
        return np.mean([sensitivity(covariance, self.x.shape[1]) for covariance in covariances], axis=0)


def fit_local_gps(
    x: np.ndarray,
    y: np.ndarray,
    *,
    kind: str = "inductive",
    covariance: Covariance | None = None,
    noise: float = 0.1,
    n_experts: int = 64,
    n_points: int = 100,
    steps: int = 300,
    learning_rate: float = 0.05,
    seed: int = 0,
    progress: bool = False,
) -> LocalGPs:
    """Local GP regression, in float64.

    Parameters
    ----------
    x, y
        Scaled inputs (N, D) and standardised observations (N,).
    kind
        "inductive" or "transductive": whether a prediction conditions on the rows nearest to the nearest centre, or
        on those nearest to the point.
    covariance, noise
        Where every expert starts to learn; by default Matérn-5/2 with a lengthscale for each column.
    n_experts, n_points
        Centres, and training rows of each; at most as many as there are rows.
    steps, learning_rate
        Of Adam on the marginal likelihood of each expert, with a rate that falls to 0. All learn at once.

    Examples
    --------
    >>> from swsgp.baselines.local_gps import fit_local_gps
    >>> x = np.linspace(-2, 2, 60)[:, None]
    >>> model = fit_local_gps(x, np.sin(3 * x[:, 0]), n_experts=4, n_points=20)
    >>> mean, variance = model.latent(np.array([[0.5]]))
    >>> round(float(mean[0, 0]), 2)
    1.0
    """
    x, y = pair_for(x, y, np.shape(x)[-1], "float64")
    if kind not in KINDS:
        raise SettingError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}.")
    for name, count in (("n_experts", n_experts), ("n_points", n_points)):
        if count < 1:
            raise SettingError(f"{name} must be a whole number, 1 or more, got {count}.")
    settings = Settings(steps=steps, learning_rate=learning_rate, seed=seed, progress=progress)
    centres = starting_inputs(x, min(n_experts, len(x)), "kmeans", seed)
    prior = starting_prior(covariance, noise, x.shape[1])
    with precision_scope("float64"), _one_thread_per_matrix():
        members = nearest(x)(centres, min(n_points, len(x)))
        priors = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(centres), *leaf.shape)), prior)
        priors = _learn(priors, x[members], y[members], settings)
        return LocalGPs(priors, jnp.asarray(centres), jnp.asarray(members), jnp.asarray(x), jnp.asarray(y), kind)


def nearest(rows: np.ndarray) -> Search:
    """A search for the nearest rows, by the plain distance of scaled inputs."""
    return Search(rows, np.ones(rows.shape[1]))


def _one_thread_per_matrix() -> threadpool_limits:
    """JAX spreads small matrices over the cores; a library that does so within each of them, too, slows it a lot."""
    return threadpool_limits(1, user_api="blas")


def _learn(priors: Prior, x: np.ndarray, y: np.ndarray, settings: Settings) -> Prior:
    """The priors with the largest marginal likelihoods, one for each expert."""
    clock, moments = Clock(), _ADAM.init(priors)
    rates = settings.rates(0, settings.steps)
    with ProgressBar(settings.steps, settings.progress) as bar:
        for step in range(0, settings.steps, _AT_ONCE):
            some = rates[step : step + _AT_ONCE]
            padded = np.pad(some, (0, _AT_ONCE - len(some)))
            priors, moments, value = _steps(priors, moments, x, y, padded)
            bar.update(Report(step + len(some), clock.seconds, float(value)))
    if not np.isfinite(value):
        raise NumericalError("the marginal likelihood is not finite; check the inputs for extreme values.")
    return priors


@jit
def _steps(
    priors: Prior, moments: Any, x: Float[Array, "E P D"], y: Float[Array, "E P"], rates: Float[Array, " T"]
) -> tuple[Prior, Any, Float[Array, ""]]:
    """A step of Adam for each rate, and the last mean of the marginal likelihoods, in nats per row."""

    def loss(priors: Prior) -> Array:
        # Experts share no parameter, so the gradient of the sum holds the gradient of each.
        return -jnp.sum(jax.vmap(Prior.log_marginal_likelihood)(priors, x, y)) / x.shape[1]

    def step(carry: tuple[Prior, Any], rate: Array) -> tuple[tuple[Prior, Any], Array]:
        priors, moments = carry
        value, gradient = jax.value_and_grad(loss)(priors)
        updates, moments = _ADAM.update(gradient, moments)
        return (jax.tree.map(lambda p, u: p - rate * u, priors, updates), moments), -value / len(x)

    (priors, moments), values = jax.lax.scan(step, (priors, moments), rates)
    return priors, moments, values[-1]


@jit
def _latent(
    priors: Prior,
    expert: Int[Array, " B"],
    x: Float[Array, "B P D"],
    y: Float[Array, "B P"],
    points: Float[Array, "B D"],
) -> tuple[Float[Array, "B 1"], Float[Array, "B 1"]]:
    """Each point's prediction from its own rows, with the hyper-parameters of its expert."""
    least = jnp.min(jnp.exp(priors.likelihood.log_noise))

    def one(expert: Array, x: Array, y: Array, point: Array) -> tuple[Array, Array]:
        prior: Prior = jax.tree.map(lambda leaf: leaf[expert], priors)
        k_xp, k_pp = prior.covariance.matrix(x, point[None]), prior.covariance.diagonal(point[None])
        mean, variance = conditional(prior.observed(x), k_xp, k_pp, (y - prior.offset)[:, None])
        return mean[0] + prior.offset, variance + prior.likelihood.noise - least

    return jax.vmap(one)(expert, x, y, points)
