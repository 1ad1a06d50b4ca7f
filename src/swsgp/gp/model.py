r"""The model: a frozen record of everything that training learns, and the paper's objective on it."""

from numbers import Integral
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from swsgp.arrays import as_inputs, in_precision, padded, to_power_of_two
from swsgp.errors import SettingError
from swsgp.gp.active import Active, PerPoint, active_set
from swsgp.gp.covariances import Covariance, check_columns
from swsgp.gp.inducing import starting_inputs
from swsgp.gp.landmarks import Landmarks
from swsgp.gp.likelihoods import Likelihood
from swsgp.gp.variational import Diagonal, Full, Variational
from swsgp.memory import check_device_memory, check_memory
from swsgp.ops import fused, native
from swsgp.ops.compiled import jit
from swsgp.ops.fused import Conditionals
from swsgp.ops.local import LocalTerms, inverse_factor, prior_remainder, weights
from swsgp.ops.products import product
from swsgp.shapes import Array, Float, Int, Scalar, check_precision, precision_scope

T = TypeVar("T")
# Rounding makes the factor of a float32 matrix with H = 100 fail under about 1e-6 times its diagonal.
JITTER = {"float32": 1e-5, "float64": 1e-8}
# The rows of a larger L do not begin at a place that 32 bits can name.
_MAX_FULL = 46_340
# Inputs that say how large the prior variance is.
_MAX_LOOKED_AT = 256


class SparseGP(eqx.Module):
    """A sparse (within sparse) variational GP.

    `active` says which inducing variables training uses, `active_prediction` which prediction uses; they differ
    for SVGP-M-H alone. `nearest_by` is the covariance that defines "nearest", by default the model's own. `offset`
    is the constant around which the latent functions vary, learned; None, as in the paper, for 0. `landmarks` are
    active for every point beside its own inducing variables, which then explain what the landmarks leave; None, as in
    the paper, for no such part.
    """

    covariance: Covariance
    likelihood: Likelihood
    inducing: Float[Array, "M D"]
    variational: Variational
    jitter: Scalar
    nearest_by: Covariance | None
    offset: Float[Array, " Q"] | None
    landmarks: Landmarks | None
    active: Active = eqx.field(static=True)
    active_prediction: Active = eqx.field(static=True)

    @property
    def metric(self) -> Covariance:
        """The covariance by which inducing inputs are near or far."""
        return self.covariance if self.nearest_by is None else self.nearest_by

    @property
    def precision(self) -> str:
        return "float64" if self.inducing.dtype == np.float64 else "float32"

    def k_zz(self, index: Int[Array, " H"]) -> Float[Array, "H H"]:
        """Prior covariance of some inducing variables, with jitter."""
        z = self.inducing[index]
        k_zz = self.covariance.matrix(z, z)
        # Jitter is relative: a fixed 1e-6 vanishes beside a variance of 1e4 and swamps one of 1e-6. The floor
        # is for a linear covariance at the origin, whose variance is 0.
        scale = jnp.maximum(jnp.mean(jnp.diagonal(k_zz)), 1e-6)
        k_zz = k_zz + self.jitter * scale * jnp.eye(len(z), dtype=k_zz.dtype)
        if self.landmarks is None:
            return k_zz
        seen = self.landmarks.features[index]
        return k_zz - product(seen, seen.T)

    def k_zx(self, index: Int[Array, " H"], x: Float[Array, "R D"], seen: Float[Array, "R G"]) -> Float[Array, "H R"]:
        """Prior covariance of some inducing variables and the function at points, without what landmarks explain.

        `seen` are the points' features; see `seen_from`.
        """
        k_zx = self.covariance.matrix(self.inducing[index], x)
        return k_zx if self.landmarks is None else k_zx - product(self.landmarks.features[index], seen.T)

    def k_xx(self, x: Float[Array, "R D"], seen: Float[Array, "R G"]) -> Float[Array, " R"]:
        """Prior variance of the function at points, without what landmarks explain."""
        return jnp.maximum(self.covariance.diagonal(x) - jnp.sum(seen**2, axis=1), 0.0)

    def seen_from(self, x: Float[Array, "R D"]) -> Float[Array, "R G"]:
        """The landmarks' features of points; none where there are no landmarks."""
        if self.landmarks is None:
            return jnp.zeros((x.shape[0], 0), x.dtype)
        return self.landmarks.features_of(self.covariance, x)

    def group_terms(self, x: Float[Array, "R D"], index: Int[Array, " H"], seen: Float[Array, "R G"]) -> LocalTerms:
        """q(f), without the offset and the landmarks' part, and KL for points that share one active set."""
        return self.variational.terms(index, self.k_zz(index), self.k_zx(index, x, seen), self.k_xx(x, seen))

    def terms(self, x: Float[Array, "B D"], index: Int[Array, "..."]) -> LocalTerms:
        """q(f) of a batch, and the mean KL of its points: each with its own active set, or all with one."""
        seen = self.seen_from(x)
        q, simple = self.variational, None
        # Of all of S the root is known, where the compiled operations would factor it again.
        is_whole = isinstance(q, Full) and index.shape[-1] == len(self.inducing)
        if index.ndim > 1 and self.landmarks is None and not is_whole:
            simple = self.covariance.simple(self.inducing.shape[1])
            simple = fused.usable(simple, index.shape[1], q.mean.shape[1], x.dtype, has_all=isinstance(q, Full))
        if index.ndim == 1:
            mean, variance, kl = self.group_terms(x, index, seen)
        elif simple is not None:
            theta = simple.packed(0.0, self.jitter)
            given = x, self.inducing[index], theta, q.mean[index], q.of_points(index)
            mean, variance, kl = fused.local_terms(*given, simple.kinds)
            kl = jnp.mean(kl)
        else:
            mean, variance, kl = jax.vmap(self.group_terms)(x[:, None, :], index, seen[:, None, :])
            mean, variance, kl = mean[:, 0], variance[:, 0], jnp.mean(kl)
        return LocalTerms(*self.whole(mean, variance, seen), kl)

    def whole(
        self, mean: Float[Array, "B Q"], variance: Float[Array, "B Q"], seen: Float[Array, "B G"]
    ) -> tuple[Float[Array, "B Q"], Float[Array, "B Q"]]:
        """Latent moments from the local ones: with the constant and the landmarks' part added."""
        if self.landmarks is not None:
            overall = self.landmarks.marginals(seen)
            mean, variance = mean + overall[0], variance + overall[1]
        return self.around_offset(mean), variance

    def around_offset(self, mean: Float[Array, "B Q"]) -> Float[Array, "B Q"]:
        """Latent means with the constant added."""
        return mean if self.offset is None else mean + self.offset

    def own_system(
        self, x: Float[Array, "B D"], index: Int[Array, "B H"], seen: Float[Array, "B G"], *, whole: bool = False
    ) -> Conditionals:
        """a(x) = K⁻¹k, and what is left of k(x, x), of points with active sets of their own; see `Conditionals`."""
        simple = None
        if index.shape[1] <= native.MAX_SIZE and native.is_available():
            simple = self.covariance.simple(self.inducing.shape[1])
        if simple is not None:
            features = None if self.landmarks is None else (self.landmarks.features, index.astype(jnp.int32), seen)
            theta = simple.packed(0.0, self.jitter)
            return fused.conditionals(x, self.inducing[index], theta, simple.kinds, features, whole=whole)

        def one(point: Array, own: Array, seen: Array) -> Conditionals:
            w = inverse_factor(self.k_zz(own))
            k_zx = self.k_zx(own, point[None], seen[None])
            remainder = prior_remainder(w, k_zx, self.k_xx(point[None], seen[None]))[0]
            precision, log_det = jnp.zeros((0,), x.dtype), jnp.zeros((0,), x.dtype)
            if whole:
                precision, log_det = product(w.T, w), -2.0 * jnp.sum(jnp.log(jnp.diagonal(w)))
            return Conditionals(weights(w, k_zx)[:, 0], remainder, precision, log_det)

        return jax.vmap(one)(x, index, seen)

    def active_set(self, x: Float[Array, "B D"]) -> Int[Array, "..."]:
        """The active inducing variables of a training batch."""
        return active_set(self.active, self.metric, x, self.inducing)


def bound(
    model: SparseGP,
    x: Float[Array, "B D"],
    y: Float[Array, " B"],
    index: Int[Array, "..."],
    n_data: int | Scalar,
    kl_scale: float | Scalar = 1.0,
) -> Scalar:
    r"""The paper's estimate of the bound from one mini-batch (Algorithm 1), in nats for all of the data.

    $\frac NB \sum_{i \in B} E_{q(f_i)} \log p(y_i \mid f_i) - \frac{\kappa}{B} \sum_{i \in B} \mathrm{KL}_{w(x_i)}$,
    with $\kappa = 1$ in the paper. A larger $\kappa$ is a departure from it: with M much larger than H each
    inducing variable enters the KL for few points only, and the paper's bound is overconfident. Landmarks, another
    departure, are active for every point, and their KL counts once.
    """
    terms = model.terms(x, index)
    log_prob = jax.vmap(model.likelihood.expected_log_prob)(y, terms.mean, terms.variance)
    value = n_data * jnp.mean(log_prob) - kl_scale * terms.kl
    return value if model.landmarks is None else value - model.landmarks.kl()


def prepared(model: SparseGP) -> SparseGP:
    """The model, ready for predictions: with the features of its landmarks, and with its inducing variables padded to
    one of few numbers, so that models of about the same size share compiled programs.

    No active set refers to the padding. A full S, which is for few inducing variables, stays as it is.
    """
    with precision_scope(model.precision):
        if model.landmarks is not None:
            ready = model.landmarks.prepared(model.covariance, np.asarray(model.inducing))
            model = eqx.tree_at(lambda m: m.landmarks, model, ready)
        if not isinstance(model.variational, Diagonal) or not isinstance(model.active_prediction, PerPoint):
            return model
        own = [jax.device_put(padded(np.asarray(array))) for array in per_inducing(model)]
        return eqx.tree_at(per_inducing, model, own)


def per_inducing(model: SparseGP) -> list[Any]:
    """The arrays with a row for each inducing variable, for a diagonal S."""
    q: Any = model.variational
    arrays = [model.inducing, q.mean, q.log_std]
    return arrays if model.landmarks is None else [*arrays, model.landmarks.features]


def with_precision(parts: T, precision: str) -> T:
    """A model, or parts of one, with every number in this precision."""
    with precision_scope(precision):
        # By way of the host: on the device each new shape would compile a program.
        return jax.tree.map(
            lambda leaf: jax.device_put(np.asarray(leaf, precision)) if eqx.is_inexact_array(leaf) else leaf, parts
        )


def prior_variance(covariance: Covariance, x: np.ndarray) -> float:
    """The mean prior variance at some of these inputs."""
    return float(_mean_variance(covariance, to_power_of_two(x[:_MAX_LOOKED_AT])))


@jit
def _mean_variance(covariance: Covariance, x: Array) -> Array:
    return jnp.mean(covariance.diagonal(x))


def _check_size(n_inducing: int, n_latent: int, covariance_form: str, itemsize: int) -> None:
    """Whether training can hold q(u): its numbers and Adam's two moments at the start, before, during and after a
    dispatch."""
    if covariance_form == "diag":
        what, n_numbers, advice = f"n_inducing={n_inducing:,}", 4 * n_inducing * (8 * n_latent + 2), "lower it"
    elif n_inducing > _MAX_FULL:
        raise SettingError(
            f"a full S takes at most {_MAX_FULL:,} inducing points, got {n_inducing:,}; take a diagonal S."
        )
    else:
        # And their gradient, while it is made.
        what, n_numbers = f"a full S of n_inducing={n_inducing:,}", 14 * n_latent * n_inducing**2 // 2
        advice = "lower n_inducing, or take a diagonal S"
    check_memory(f"training {what}", float(itemsize * n_numbers), advice)
    check_device_memory(f"training {what}", float(itemsize * n_numbers), advice)


def create(
    x: np.ndarray,
    covariance: Covariance,
    likelihood: Likelihood,
    active: Active,
    *,
    n_inducing: int,
    covariance_form: str = "diag",
    placement: str | np.ndarray = "kmeans",
    active_prediction: Active | None = None,
    nearest_by: Covariance | None = None,
    offset: np.ndarray | None = None,
    precision: str = "float32",
    jitter: float | None = None,
    seed: int = 0,
) -> SparseGP:
    """A model before training, with its inducing inputs placed on the (scaled) training inputs x.

    Parameters
    ----------
    active, active_prediction
        Active sets in training and in prediction; the second defaults to the first. Training with `All` and
        predicting with `PerPoint(H)` is the paper's SVGP-M-H.
    covariance_form
        "diag" or "full" S. A full one has M²/2 numbers for each latent function.
    placement
        "kmeans", "subset", or an (M, D) array of inducing inputs.
    offset
        Where the constant of each latent function starts, to be learned; without one it is 0 and stays so.
    jitter
        What is added to the diagonal of every K, relative to its mean; by default 1e-5 in float32, 1e-8 in float64.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.linspace(0, 1, 50)[:, None]
    >>> model = create(x, Matern52(0.2), Gaussian(0.01), PerPoint(4), n_inducing=10)
    >>> model.inducing.shape
    (10, 1)
    """
    active_prediction = active if active_prediction is None else active_prediction
    check_precision(precision)
    for one in (active, active_prediction):
        if not isinstance(one, Active):
            raise SettingError(f"active must be PerPoint(...), Union(...) or All(), got {one!r}.")
    if not (isinstance(n_inducing, Integral) and n_inducing >= 1):
        raise SettingError(f"n_inducing must be a whole number, 1 or more, got {n_inducing!r}.")
    jitter = JITTER[precision] if jitter is None else jitter
    if not 0 < jitter < 1:
        raise SettingError(f"jitter must be between 0 and 1, relative to the variance, got {jitter}.")
    if covariance_form not in ("diag", "full"):
        raise SettingError(f"covariance_form must be 'diag' or 'full', got {covariance_form!r}.")
    z = starting_inputs(in_precision(as_inputs(x), precision), n_inducing, placement, seed)
    active.check(n_inducing)
    active_prediction.check(n_inducing)
    for metric in (covariance, nearest_by):
        if metric is not None:
            check_columns(metric, z.shape[1])
    _check_size(n_inducing, likelihood.n_latent, covariance_form, np.dtype(precision).itemsize)
    covariance, likelihood, nearest_by = with_precision((covariance, likelihood, nearest_by), precision)
    with precision_scope(precision):
        dtype = jnp.dtype(precision)
        inducing = jax.device_put(np.asarray(z, dtype))
        # Small beside the prior: a wide q(u) at the start costs more of the bound than a narrow one.
        std = 0.1 * np.sqrt(prior_variance(covariance, np.asarray(z, dtype)) + 1e-12)
        form = Full if covariance_form == "full" else Diagonal
        variational = form.start(n_inducing, likelihood.n_latent, std)
        return SparseGP(
            covariance,
            likelihood,
            inducing,
            variational,
            jax.device_put(np.asarray(jitter, dtype)),
            nearest_by,
            None
            if offset is None
            else jax.device_put(np.broadcast_to(np.asarray(offset, dtype), (likelihood.n_latent,))),
            None,
            active,
            active_prediction,
        )
