r"""Deep GP by random features (DGP-RBF, Cutajar et al. 2017).

A GP with the RBF covariance is, nearly, a linear model on random Fourier features: with J frequencies
$\omega_j \sim N(0, \mathrm{diag}(\ell^{-2}))$,

$$ \phi(x) = \sqrt{\sigma^2 / J}\,[\cos \Omega x,\; \sin \Omega x], \qquad
   \phi(x)^\top \phi(y) \approx \sigma^2 e^{-\frac12 \sum_d (x_d - y_d)^2/\ell_d^2}, \qquad
   f(x) = W^\top \phi(x), \; W_{ij} \sim N(0, 1). $$

A deep GP feeds the outputs of one such layer, with the inputs beside them, to the next. The weights have a factorised
Gaussian posterior $q(W)$, so an output given its features is Gaussian, too:
$f \mid \phi \sim N(\phi^\top m,\, (\phi^2)^\top s^2)$. The bound draws hidden outputs from it (the local
reparametrisation) and takes the last ones in closed form:
$\frac NB \sum_{i \in B} E \log p(y_i \mid f_i) - \mathrm{KL}(q(W) \,\|\, p(W))$.

Frequencies are drawn once, in units of lengthscales that are learned (the paper's PRIOR-FIXED).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from swsgp.arrays import in_precision, inputs_for, pair_for, power_of_two_below
from swsgp.baselines.predictive import in_chunks
from swsgp.data.batches import RowStream
from swsgp.errors import NumericalError, SettingError
from swsgp.fit.progress import ProgressBar
from swsgp.fit.settings import Settings
from swsgp.fit.stopping import Clock, Report
from swsgp.gp.likelihoods import Gaussian, Likelihood
from swsgp.gp.model import with_precision
from swsgp.gp.quadrature import N_DRAWS, normal_draws, safe_sqrt
from swsgp.ops.compiled import jit
from swsgp.shapes import Array, Float, Int, Scalar, check_precision, precision_scope

_ADAM = optax.scale_by_adam()
# Steps of one dispatch, after which progress is shown.
_AT_ONCE = 500
# Numbers held at once in the features of a chunk: 32 MB in float64.
_MAX_NUMBERS = 1 << 22


class Layer(eqx.Module):
    """One GP layer: frequencies in units of the lengthscales, the covariance's parameters, and q(W)."""

    frequencies: Float[Array | np.ndarray, "D J"]
    log_lengthscale: Float[Array | np.ndarray, " D"]
    log_variance: Float[Array | np.ndarray, ""]
    mean: Float[Array | np.ndarray, "F Q"]
    log_std: Float[Array | np.ndarray, "F Q"]

    def features(self, x: Float[Array, "B D"]) -> Float[Array, "B F"]:
        """φ at each point; F = 2 J."""
        angles = (x * jnp.exp(-self.log_lengthscale)) @ self.frequencies
        scale = jnp.exp(0.5 * self.log_variance) / jnp.sqrt(self.frequencies.shape[1])
        return scale * jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)

    def marginals(self, x: Float[Array, "B D"]) -> tuple[Float[Array, "B Q"], Float[Array, "B Q"]]:
        """Mean and variance of the outputs at each point."""
        features = self.features(x)
        return features @ self.mean, features**2 @ jnp.exp(2.0 * self.log_std)

    def kl(self) -> Scalar:
        """KL from q(W) to the standard normal prior."""
        return 0.5 * jnp.sum(jnp.exp(2.0 * self.log_std) + self.mean**2 - 1.0 - 2.0 * self.log_std)


class DeepFeatures(eqx.Module):
    """A deep GP: layers from the inputs to the latent functions of the likelihood."""

    layers: tuple[Layer, ...]
    likelihood: Likelihood
    n_draws: int = eqx.field(static=True)

    def latent(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent functions, (S, len(x), Q) each, for S draws of the hidden layers.

        S is 1 without hidden layers. The draws are fixed and the same for every row, so that what is predicted for a
        row does not depend on the others.
        """
        first = self.layers[0]
        precision = "float64" if first.mean.dtype == np.float64 else "float32"
        x = inputs_for(x, first.frequencies.shape[0], precision)
        draws = _fixed_draws(self).astype(precision)
        n_rows = max(1, _MAX_NUMBERS // (len(draws) * len(first.mean)))
        with precision_scope(precision):
            return in_chunks(lambda chunk: _latent(self, chunk, draws), x, power_of_two_below(n_rows), axis=1)

    def sensitivity(self) -> np.ndarray:
        """How fast the first layer varies along each column."""
        return np.exp(np.asarray(self.layers[0].log_variance - 2.0 * self.layers[0].log_lengthscale, dtype=np.float64))


def outputs(
    model: DeepFeatures, x: Float[Array, "B D"], draws: Float[Array, "#B K"]
) -> tuple[Float[Array, "B Q"], Float[Array, "B Q"]]:
    """Mean and variance of the last layer, given standard normal draws for the K outputs of all hidden ones."""
    first, *others = model.layers
    mean, variance = first.marginals(x)
    for layer in others:
        own, draws = jnp.split(draws, [mean.shape[1]], axis=1)
        hidden = mean + safe_sqrt(variance) * own
        mean, variance = layer.marginals(jnp.concatenate([hidden, x], axis=1))
    return mean, variance


def bound(
    model: DeepFeatures, x: Float[Array, "B D"], y: Float[Array, " B"], draws: Float[Array, "S B K"], n_data: int
) -> Scalar:
    """The estimate of the bound from one mini-batch and some draws, in nats for all of the data."""
    mean, variance = jax.vmap(outputs, in_axes=(None, None, 0))(model, x, draws)
    log_prob = jax.vmap(jax.vmap(model.likelihood.expected_log_prob), in_axes=(None, 0, 0))(y, mean, variance)
    return n_data * jnp.mean(log_prob) - sum((layer.kl() for layer in model.layers), jnp.zeros(()))


def fit_deep_features(
    x: np.ndarray,
    y: np.ndarray,
    likelihood: Likelihood | None = None,
    *,
    n_layers: int = 2,
    n_hidden: int = 3,
    n_frequencies: int = 100,
    steps: int = 10_000,
    batch_size: int = 200,
    learning_rate: float = 0.01,
    n_draws: int = 1,
    n_prediction_draws: int = 64,
    precision: str = "float32",
    seed: int = 0,
    progress: bool = False,
) -> DeepFeatures:
    """A deep GP for numbers or classes.

    Parameters
    ----------
    x, y
        Scaled inputs (N, D), and standardised observations or class numbers (N,).
    likelihood
        By default Gaussian.
    n_layers, n_hidden
        Layers of GPs, the last among them, and GPs in each hidden one.
    n_frequencies
        Random frequencies of a layer; each gives two features.
    steps, batch_size, learning_rate
        Of Adam on the bound, with a rate that falls to 0.
    n_draws, n_prediction_draws
        Draws of the hidden layers in a step and in a prediction; in the latter at most 256.

    Examples
    --------
    >>> from swsgp.baselines.deep_features import fit_deep_features
    >>> from swsgp.baselines.predictive import moments
    >>> x = np.linspace(-2, 2, 60)[:, None]
    >>> model = fit_deep_features(x, np.sin(3 * x[:, 0]), n_layers=1, steps=1000)
    >>> mean, variance = moments(model.likelihood, *model.latent(np.array([[0.5]])))
    >>> bool(abs(mean[0] - np.sin(1.5)) < 0.2)
    True
    """
    check_precision(precision)
    x, y = pair_for(x, y, np.shape(x)[-1], "float64")
    x, y = in_precision(x, precision), in_precision(y, precision)
    likelihood = Gaussian(0.1) if likelihood is None else likelihood
    likelihood.check(y)
    sizes = {"n_layers": n_layers, "n_hidden": n_hidden, "n_frequencies": n_frequencies, "n_draws": n_draws}
    for name, count in {**sizes, "n_prediction_draws": n_prediction_draws}.items():
        if count < 1:
            raise SettingError(f"{name} must be a whole number, 1 or more, got {count}.")
    if n_prediction_draws > N_DRAWS:
        raise SettingError(f"n_prediction_draws must be at most {N_DRAWS}, got {n_prediction_draws}.")
    settings = Settings(steps=steps, batch_size=batch_size, learning_rate=learning_rate, seed=seed, progress=progress)
    rng = np.random.default_rng(seed)
    layers = []
    for number in range(n_layers):
        is_last = number == n_layers - 1
        n_inputs = x.shape[1] + (n_hidden if number else 0)
        layers.append(_starting_layer(n_inputs, n_frequencies, likelihood.n_latent if is_last else n_hidden, rng))
    model = with_precision(DeepFeatures(tuple(layers), likelihood, n_prediction_draws), precision)
    with precision_scope(precision):
        return _learn(model, x, y, settings, n_draws)


def _starting_layer(n_inputs: int, n_frequencies: int, n_outputs: int, rng: np.random.Generator) -> Layer:
    """A layer whose q(W) is narrow around small random weights: those of a hidden layer must not all be the same."""
    shape = (2 * n_frequencies, n_outputs)
    return Layer(
        frequencies=rng.normal(size=(n_inputs, n_frequencies)),
        log_lengthscale=np.full(n_inputs, 0.5 * np.log(n_inputs)),
        log_variance=np.zeros(()),
        mean=0.1 * rng.normal(size=shape),
        log_std=np.full(shape, np.log(0.1)),
    )


def _learn(model: DeepFeatures, x: np.ndarray, y: np.ndarray, settings: Settings, n_draws: int) -> DeepFeatures:
    """The model with the largest bound, by Adam on mini-batches."""
    clock, stream = Clock(), RowStream(len(x), settings.batch_size, settings.seed)
    learned, fixed = _split(model)
    moments, rows = _ADAM.init(learned), (jnp.asarray(x), jnp.asarray(y))
    key = jax.random.key(settings.seed)
    with ProgressBar(settings.steps, settings.progress) as bar:
        for step in range(0, settings.steps, _AT_ONCE):
            n_steps = min(_AT_ONCE, settings.steps - step)
            batches = np.pad(stream.batches(step, n_steps), ((0, _AT_ONCE - n_steps), (0, 0)))
            rates = np.pad(settings.rates(step, n_steps), (0, _AT_ONCE - n_steps)).astype(x.dtype)
            own = jax.random.fold_in(key, step)
            learned, moments, total = _steps(
                learned, moments, fixed, *rows, batches, rates, own, np.int32(n_steps), n_draws=n_draws
            )
            bar.update(Report(step + n_steps, clock.seconds, float(total) / n_steps))
    if not np.isfinite(total):
        raise NumericalError("the bound is not finite; lower learning_rate or use precision='float64'.")
    return eqx.combine(learned, fixed)


def _split(model: DeepFeatures) -> tuple[DeepFeatures, DeepFeatures]:
    """The part of a model that training changes, and the rest: the frequencies stay as they were drawn."""
    learned = jax.tree.map(eqx.is_inexact_array, model)
    return eqx.partition(
        model, eqx.tree_at(lambda m: [layer.frequencies for layer in m.layers], learned, replace_fn=lambda _: False)
    )


def _n_hidden(model: DeepFeatures) -> int:
    """Outputs of all hidden layers together."""
    return sum(layer.mean.shape[1] for layer in model.layers[:-1])


def _fixed_draws(model: DeepFeatures) -> np.ndarray:
    """Quasi-random standard normal draws for the outputs of the hidden layers, (S, K)."""
    n_hidden = _n_hidden(model)
    return np.zeros((1, 0)) if n_hidden == 0 else normal_draws(n_hidden)[: model.n_draws]


# ------------------------------------------------------------------------------------------------- compiled parts


def _steps_of_adam(
    learned: DeepFeatures,
    moments: Any,
    fixed: DeepFeatures,
    x: Float[Array, "N D"],
    y: Float[Array, " N"],
    batches: Int[Array, "T B"],
    rates: Float[Array, " T"],
    key: Array,
    n_steps: Int[Array, ""],
    n_draws: int,
) -> tuple[DeepFeatures, Any, Scalar]:
    """The first `n_steps` of the batches, and the sum of their bounds in nats per row."""

    def loss(learned: DeepFeatures, rows: Array, key: Array) -> Array:
        model: DeepFeatures = eqx.combine(learned, fixed)
        # Without hidden layers one draw, of nothing, says all.
        n_hidden = _n_hidden(model)
        draws = jax.random.normal(key, (n_draws if n_hidden else 1, len(rows), n_hidden), x.dtype)
        return -bound(model, x[rows], y[rows], draws, len(x)) / len(x)

    def step(i: Array, carry: tuple[DeepFeatures, Any, Scalar]) -> tuple[DeepFeatures, Any, Scalar]:
        learned, moments, total = carry
        value, gradient = eqx.filter_value_and_grad(loss)(learned, batches[i], jax.random.fold_in(key, i))
        updates, moments = _ADAM.update(gradient, moments)
        learned = eqx.apply_updates(learned, jax.tree.map(lambda u: -rates[i] * u, updates))
        return learned, moments, total - value

    return jax.lax.fori_loop(0, n_steps, step, (learned, moments, jnp.zeros((), x.dtype)))


_steps = jit(_steps_of_adam, constant="n_draws")


@jit
def _latent(
    model: DeepFeatures, x: Float[Array, "B D"], draws: Float[Array, "S K"]
) -> tuple[Float[Array, "S B Q"], Float[Array, "S B Q"]]:
    return jax.vmap(lambda own: outputs(model, x, own[None]))(draws)
