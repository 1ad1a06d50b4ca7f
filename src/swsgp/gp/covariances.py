r"""Covariance functions ("kernels"): each one is a scalar formula on one pair of points.

Combine them with `+` and `*`, and restrict one to some columns with `Columns`. Parameters are kept as logarithms,
so that every value that an optimiser can reach is a valid one. A `lengthscale` is one number for all columns, or
one for each (ARD).
"""

import abc
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from swsgp.arrays import log_parameter
from swsgp.errors import SettingError
from swsgp.ops.distances import squared_distances, squared_distances_within
from swsgp.ops.fused import Simple
from swsgp.shapes import Array, Float, Parameter, Scalar


class Covariance(eqx.Module):
    """A positive definite function k(x, y)."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " D"], y: Float[Array, " D"]) -> Scalar:
        """k(x, y) for one pair of points."""

    def matrix(self, x: Float[Array, "R D"], z: Float[Array, "H D"]) -> Float[Array, "R H"]:
        """k on all pairs."""
        return jax.vmap(lambda one: jax.vmap(lambda other: self(one, other))(z))(x)

    def diagonal(self, x: Float[Array, "R D"]) -> Float[Array, " R"]:
        """k(x, x), the prior variance, at each point."""
        return jax.vmap(lambda one: self(one, one))(x)

    def metric(self, n_columns: int) -> Float[Array, " D"] | None:
        """Column factors after which the nearest points are those at the smallest Euclidean distance; None if there are
        none, and the nearest are those with the largest k(x, z).
        """
        return None

    def local(self) -> "Covariance":
        """The part that says who is near: all of it, but for linear terms, which are largest far away."""
        return self

    def simple(self, n_columns: int) -> Simple | None:
        """In the form that the compiled operations know; None if it has none."""
        return None

    def __add__(self, other: "Covariance") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "Covariance") -> "Product":
        return Product(self, other)


class _Stationary(Covariance):
    """variance · profile(r²), with r the distance after division by the lengthscales."""

    log_lengthscale: Parameter
    log_variance: Parameter

    def __init__(self, lengthscale: object = 1.0, variance: object = 1.0):
        self.log_lengthscale = log_parameter("lengthscale", lengthscale)
        self.log_variance = log_parameter("variance", variance)

    @property
    def lengthscale(self) -> Array:
        return jnp.exp(self.log_lengthscale)

    @property
    def variance(self) -> Array:
        return jnp.exp(self.log_variance)

    @abc.abstractmethod
    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        """Correlation as a function of the squared scaled distance; 1 at 0, and falling."""

    def __call__(self, x: Float[Array, " D"], y: Float[Array, " D"]) -> Scalar:
        return self.variance * self.profile(jnp.sum(((x - y) / self.lengthscale) ** 2))

    def matrix(self, x: Float[Array, "R D"], z: Float[Array, "H D"]) -> Float[Array, "R H"]:
        # `matrix(z, z)` says by identity that it is symmetric, and its gradient is then cheaper.
        if x is z:
            return self.variance * self.profile(squared_distances_within(z / self.lengthscale))
        return self.variance * self.profile(squared_distances(x / self.lengthscale, z / self.lengthscale))

    def diagonal(self, x: Float[Array, "R D"]) -> Float[Array, " R"]:
        return jnp.broadcast_to(self.variance, x.shape[:1])

    def metric(self, n_columns: int) -> Float[Array, " D"]:
        return jnp.broadcast_to(1.0 / self.lengthscale, (n_columns,))

    def mixture(self) -> dict[int, float | Scalar]:
        """The profile as shares of 0: Matérn-1/2, 1: 3/2, 2: 5/2, 3: the squared exponential; empty if it is none."""
        return {}

    def simple(self, n_columns: int) -> Simple | None:
        shares = self.mixture()
        if not shares:
            return None
        weights = jnp.stack([self.variance * shares.get(kind, 0.0) for kind in range(4)])
        zero = jnp.zeros(n_columns, weights.dtype)
        return Simple(sum(1 << kind for kind in shares), self.metric(n_columns), zero, weights, zero[0])


@jax.custom_jvp
def _root(r2: Array) -> Array:
    """Square root of a squared distance, with derivative 0 where two points coincide.

    There a bare one has an infinite derivative, and would drown the others of its row. Closer than 1e-5
    lengthscales counts as coinciding: compiled code may find a point at a distance of rounding errors from itself.
    Farther than 10,000 counts as that, where every profile is 0: the square of more may not be a number.
    """
    return jnp.sqrt(jnp.clip(r2, 0.0, 1e8))


@_root.defjvp
def _root_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    r = _root(*primals)
    return r, jnp.where(r > 1e-5, 0.5 / jnp.maximum(r, 1e-5), 0.0) * tangents[0]


class Matern12(_Stationary):
    r"""Matérn-1/2 (exponential): $\sigma^2 e^{-r}$."""

    def __init__(self, lengthscale: object = 1.0, variance: object = 1.0):
        super().__init__(lengthscale, variance)

    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.exp(-_root(r2))

    def mixture(self) -> dict[int, float | Scalar]:
        return {0: 1.0}


class Matern32(_Stationary):
    r"""Matérn-3/2: $\sigma^2 (1 + \sqrt3 r) e^{-\sqrt3 r}$."""

    def __init__(self, lengthscale: object = 1.0, variance: object = 1.0):
        super().__init__(lengthscale, variance)

    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        r = _root(3.0 * r2)
        return (1.0 + r) * jnp.exp(-r)

    def mixture(self) -> dict[int, float | Scalar]:
        return {1: 1.0}


class Matern52(_Stationary):
    r"""Matérn-5/2: $\sigma^2 (1 + \sqrt5 r + \tfrac53 r^2) e^{-\sqrt5 r}$."""

    def __init__(self, lengthscale: object = 1.0, variance: object = 1.0):
        super().__init__(lengthscale, variance)

    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        r = _root(5.0 * r2)
        return (1.0 + r + r**2 / 3.0) * jnp.exp(-r)

    def mixture(self) -> dict[int, float | Scalar]:
        return {2: 1.0}


class Matern(_Stationary):
    r"""A mixture of Matérn-1/2, 3/2 and 5/2 with common lengthscales: $\sigma^2 \sum_\nu w_\nu m_\nu(r)$.

    How rough functions are is learned with the shares w, which start equal.
    """

    log_shares: Parameter

    def __init__(self, lengthscale: object = 1.0, variance: object = 1.0, shares: object = (1.0, 1.0, 1.0)):
        super().__init__(lengthscale, variance)
        self.log_shares = log_parameter("shares", shares)
        if self.log_shares.shape != (3,):
            raise SettingError(f"shares must be three numbers, for Matérn-1/2, 3/2 and 5/2, got {shares!r}.")

    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        r = _root(r2)
        a, b = np.sqrt(3.0) * r, np.sqrt(5.0) * r
        parts = jnp.exp(-r), (1.0 + a) * jnp.exp(-a), (1.0 + b + b**2 / 3.0) * jnp.exp(-b)
        shares = jax.nn.softmax(self.log_shares)
        return shares[0] * parts[0] + shares[1] * parts[1] + shares[2] * parts[2]

    def mixture(self) -> dict[int, float | Scalar]:
        shares = jax.nn.softmax(self.log_shares)
        return {kind: shares[kind] for kind in range(3)}


class RBF(_Stationary):
    r"""Squared exponential: $\sigma^2 e^{-r^2/2}$."""

    def __init__(self, lengthscale: object = 1.0, variance: object = 1.0):
        super().__init__(lengthscale, variance)

    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.exp(-0.5 * r2)

    def mixture(self) -> dict[int, float | Scalar]:
        return {3: 1.0}


class RationalQuadratic(_Stationary):
    r"""Rational quadratic: $\sigma^2 (1 + r^2 / 2\alpha)^{-\alpha}$."""

    log_alpha: Parameter

    def __init__(self, lengthscale: object = 1.0, variance: object = 1.0, alpha: object = 1.0):
        super().__init__(lengthscale, variance)
        self.log_alpha = log_parameter("alpha", alpha)

    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        alpha = jnp.exp(self.log_alpha)
        return jnp.exp(-alpha * jnp.log1p(r2 / (2.0 * alpha)))


class Linear(Covariance):
    r"""Linear functions through the origin: $\sum_d \sigma_d^2 x_d y_d$; one variance, or one for each column."""

    log_variance: Parameter

    def __init__(self, variance: object = 1.0):
        self.log_variance = log_parameter("variance", variance)

    def __call__(self, x: Float[Array, " D"], y: Float[Array, " D"]) -> Scalar:
        return jnp.sum(jnp.exp(self.log_variance) * x * y)

    def matrix(self, x: Float[Array, "R D"], z: Float[Array, "H D"]) -> Float[Array, "R H"]:
        return (x * jnp.exp(self.log_variance)) @ z.T

    def simple(self, n_columns: int) -> Simple:
        variance = jnp.broadcast_to(jnp.exp(self.log_variance), (n_columns,))
        return Simple(16, jnp.zeros_like(variance), variance, jnp.zeros(4, variance.dtype), jnp.zeros_like(variance[0]))


class Constant(Covariance):
    r"""An unknown constant: $\sigma^2$ for every pair. As a factor, it scales another covariance."""

    log_variance: Parameter

    def __init__(self, variance: object = 1.0):
        self.log_variance = log_parameter("variance", variance)

    def __call__(self, x: Float[Array, " D"], y: Float[Array, " D"]) -> Scalar:
        return jnp.exp(self.log_variance)

    def simple(self, n_columns: int) -> Simple:
        variance = jnp.exp(self.log_variance)
        zero = jnp.zeros(n_columns, variance.dtype)
        return Simple(0, zero, zero, jnp.zeros(4, variance.dtype), variance)


class _Pair(Covariance):
    """Two covariances in one."""

    first: Covariance
    second: Covariance

    def metric(self, n_columns: int) -> Float[Array, " D"] | None:
        # A constant beside a covariance, or before it, leaves the order of its values as it is.
        if isinstance(self.first, Constant):
            return self.second.metric(n_columns)
        if isinstance(self.second, Constant):
            return self.first.metric(n_columns)
        return None


class Sum(_Pair):
    """k(x, y) = first(x, y) + second(x, y).

    Beside a linear covariance, whose largest values are at the far end of the data, another says alone who is near.
    """

    def local(self) -> Covariance:
        if _is_linear(self.first) == _is_linear(self.second):
            first, second = self.first.local(), self.second.local()
            return self if first is self.first and second is self.second else Sum(first, second)
        return self.second.local() if _is_linear(self.first) else self.first.local()

    def metric(self, n_columns: int) -> Float[Array, " D"] | None:
        own = self.local()
        return super().metric(n_columns) if own is self else own.metric(n_columns)

    def __call__(self, x: Float[Array, " D"], y: Float[Array, " D"]) -> Scalar:
        return self.first(x, y) + self.second(x, y)

    def matrix(self, x: Float[Array, "R D"], z: Float[Array, "H D"]) -> Float[Array, "R H"]:
        return self.first.matrix(x, z) + self.second.matrix(x, z)

    def simple(self, n_columns: int) -> Simple | None:
        first, second = self.first.simple(n_columns), self.second.simple(n_columns)
        # There is room for one distance.
        if first is None or second is None or (first.kinds & 15 and second.kinds & 15):
            return None
        return Simple(
            first.kinds | second.kinds,
            first.inverse_lengthscales + second.inverse_lengthscales,
            first.linear + second.linear,
            first.weights + second.weights,
            first.constant + second.constant,
        )


class Product(_Pair):
    """k(x, y) = first(x, y) · second(x, y)."""

    def __call__(self, x: Float[Array, " D"], y: Float[Array, " D"]) -> Scalar:
        return self.first(x, y) * self.second(x, y)

    def matrix(self, x: Float[Array, "R D"], z: Float[Array, "H D"]) -> Float[Array, "R H"]:
        return self.first.matrix(x, z) * self.second.matrix(x, z)

    def simple(self, n_columns: int) -> Simple | None:
        for factor, other in ((self.first, self.second), (self.second, self.first)):
            base = other.simple(n_columns)
            if isinstance(factor, Constant) and base is not None:
                size = jnp.exp(factor.log_variance)
                linear, weights, constant = size * base.linear, size * base.weights, size * base.constant
                return base._replace(linear=linear, weights=weights, constant=constant)
        return None


class Columns(Covariance):
    """A covariance that sees only some columns of its inputs, given by position."""

    base: Covariance
    columns: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, base: Covariance, columns: Sequence[int]):
        self.base = base
        self.columns = tuple(int(column) for column in columns)
        if not self.columns or min(self.columns) < 0 or len(set(self.columns)) < len(self.columns):
            raise SettingError(f"columns must be different positions from 0 on, at least one, got {columns}.")

    def __call__(self, x: Float[Array, " D"], y: Float[Array, " D"]) -> Scalar:
        seen = jnp.asarray(self.columns)
        return self.base(x[seen], y[seen])

    def matrix(self, x: Float[Array, "R D"], z: Float[Array, "H D"]) -> Float[Array, "R H"]:
        seen = jnp.asarray(self.columns)
        return self.base.matrix(x[:, seen], z[:, seen])

    def metric(self, n_columns: int) -> Float[Array, " D"] | None:
        factors = self.base.metric(len(self.columns))
        return None if factors is None else self._spread(factors, n_columns)

    def simple(self, n_columns: int) -> Simple | None:
        base = self.base.simple(len(self.columns))
        if base is None:
            return None
        factors, linear = (self._spread(part, n_columns) for part in (base.inverse_lengthscales, base.linear))
        return base._replace(inverse_lengthscales=factors, linear=linear)

    def _spread(self, values: Float[Array, " C"], n_columns: int) -> Float[Array, " D"]:
        """Values of the columns that are seen, and 0 for the others."""
        return jnp.zeros(n_columns, values.dtype).at[jnp.asarray(self.columns)].set(values)


def _is_linear(covariance: Covariance) -> bool:
    match covariance:
        case Linear():
            return True
        case Columns(base=base):
            return _is_linear(base)
        case Product(first=Constant(), second=other) | Product(first=other, second=Constant()):
            return _is_linear(other)
    return False


def check_columns(covariance: Covariance, n_columns: int) -> None:
    """Refuse a covariance whose parameters or column positions do not fit inputs of `n_columns` columns."""
    if isinstance(covariance, _Pair):
        check_columns(covariance.first, n_columns)
        check_columns(covariance.second, n_columns)
    elif isinstance(covariance, Columns):
        if max(covariance.columns) >= n_columns:
            raise SettingError(f"Columns names position {max(covariance.columns)}, but there are {n_columns} columns.")
        check_columns(covariance.base, len(covariance.columns))
    else:
        may_be_vector = "log_variance" if isinstance(covariance, Linear) else "log_lengthscale"
        for name, parameter in vars(covariance).items():
            if name == "log_shares":
                continue
            allowed = ((), (n_columns,)) if name == may_be_vector else ((),)
            if parameter.shape not in allowed:
                raise SettingError(
                    f"{type(covariance).__name__} has a {name.removeprefix('log_')} of shape {parameter.shape}; "
                    f"give one number{f' or {n_columns}, one for each column' if name == may_be_vector else ''}."
                )


def sensitivity(covariance: Covariance, n_columns: int) -> np.ndarray:
    """How fast functions of this covariance vary along each column: σ²/ℓ², or the variance of a linear slope."""
    match covariance:
        case Sum(first=first, second=second):
            return sensitivity(first, n_columns) + sensitivity(second, n_columns)
        case Product(first=first, second=second):
            # d(fg) = g df + f dg, each factor at its prior size.
            sizes = [float(np.mean(part.diagonal(jnp.ones((1, n_columns))))) for part in (first, second)]
            return sensitivity(first, n_columns) * sizes[1] + sensitivity(second, n_columns) * sizes[0]
        case Columns(base=base, columns=columns):
            found = np.zeros(n_columns)
            found[list(columns)] = sensitivity(base, len(columns))
            return found
        case _Stationary():
            # In NumPy, which needs no program.
            log_variance, log_lengthscale = np.asarray(covariance.log_variance), np.asarray(covariance.log_lengthscale)
            return np.broadcast_to(np.exp(log_variance - 2.0 * log_lengthscale), (n_columns,))
        case Linear():
            return np.broadcast_to(np.exp(np.asarray(covariance.log_variance)), (n_columns,))
        case _:
            return np.zeros(n_columns)
