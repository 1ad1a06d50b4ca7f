r"""Adam for q(u) when a step uses few of its rows: the others are not touched.

Adam moves every row in every step, also one whose gradient is 0, by what is left of its momentum. As long as a row is
not active nothing depends on where it is, so that it need not be moved before it is active again. Let a row be active
in step s and then not until step t, with moments m and v after step s. Adam's step j in between moves it by

$$ -\,w_j\, \rho^{j-s}\, d, \qquad
   d = \frac{m}{\sqrt v + \varepsilon \sqrt{1 - \beta_2^s}}, \quad
   \rho = \frac{\beta_1}{\sqrt{\beta_2}}, \quad
   w_j = \mathrm{rate}_j \frac{\sqrt{1 - \beta_2^j}}{1 - \beta_1^j}, $$

so with the *reach* $R_t = \sum_{k \ge 0} \rho^k w_{t+k}$ of step t it would come to rest at $\theta_\infty$, its place
before step s less $R_s d$, and before step t it is at $\theta_\infty + \rho^{t-s} R_t\, d$. A row is kept by its
resting place, from which its place follows when it is active again, whatever the rates and the bias corrections were
meanwhile.

This is Adam but for ε, which is that of step s throughout. The motion in a step in which a row is active is exact; that
until it is active again has a relative error of $\varepsilon / \sqrt{\hat v}$ times 0.005, or times up to 2 if s is one
of the first steps, whose bias corrections change fast. It shows where gradients are smaller than about 1e-6, as those
of the other neighbours of a row that is itself an inducing input: Adam moves them as far as any, by mere rounding.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from swsgp.fit.settings import Settings
from swsgp.gp.variational import Diagonal
from swsgp.ops.compiled import jit
from swsgp.shapes import Array, Float, Int, Scalar

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
_RHO = BETA_1 / BETA_2**0.5
# Steps after which nothing of a momentum is left: ρ^400 = 6e-19.
_HORIZON = 400
_PART = 1 << 20


def reach(settings: Settings, first: int, n_steps: int) -> np.ndarray:
    """R of some consecutive steps, the first of them after `first` others.

    Each is added up in the same order, so that it is the same number wherever a dispatch begins.
    """
    rates = settings.rates(first, n_steps + _HORIZON)
    step = first + 1 + np.arange(len(rates))
    w = rates * np.sqrt(1 - BETA_2**step) / (1 - BETA_1**step)
    return np.asarray(sum(_RHO**k * w[k : k + n_steps] for k in range(_HORIZON)))


class Moving(eqx.Module):
    """Some rows before a step: where they are, and their moments without a gradient."""

    place: Float[Array, "A P"]
    first: Float[Array, "A P"]
    second: Float[Array, "A P"]

    @property
    def variational(self) -> Diagonal:
        """q(u) of these rows."""
        return Diagonal(*jnp.split(self.place, 2, axis=1))


class Rows(eqx.Module):
    """All rows of q(u) and their moments, before Adam's step number `step`, whose reach is `reach`.

    `packed` has for the mean and log_std of each row, P = 2Q columns, the resting place, the first and the second
    moment after the last step in which it was active, the sum of the gradients of a step, 0 between two of them, and
    the number of that last step in two parts: 4P + 2 columns next to one another, so that a row is one place in memory.
    """

    packed: Float[Array, "M C"]
    step: Int[Array, ""]
    reach: Scalar

    @classmethod
    def start(cls, q: Diagonal, reach: float) -> "Rows":
        """Before the first step."""
        place = jnp.concatenate([q.mean, q.log_std], axis=1)
        # Any step will do as the last of rows that do not move; 1 - β₂⁰ would be 0.
        first = jnp.ones((), jnp.int32)
        last = jnp.broadcast_to(_parts(first, place.dtype), (len(place), 2))
        packed = jnp.concatenate([jnp.pad(place, ((0, 0), (0, 3 * place.shape[1]))), last], axis=1)
        return cls(packed, first, jnp.asarray(reach, place.dtype))

    def moving(self, index: Int[Array, " A"]) -> Moving:
        """Some rows, brought up to date."""
        return self._up_to_date(self.packed[index])

    def moved(self, index: Int[Array, " A"], rows: Moving, gradient: Diagonal, next_reach: Scalar) -> "Rows":
        """After a step in which these rows, as `moving` gave them, have this gradient.

        The gradients of a row that is named several times add up, and each of its copies is written alike.
        """
        own = jnp.concatenate([gradient.mean, gradient.log_std], axis=1)
        n = own.shape[1]
        packed = self.packed.at[index, 3 * n : 4 * n].add(own)
        total = packed[index, 3 * n : 4 * n]
        first = rows.first + (1 - BETA_1) * total
        second = rows.second + (1 - BETA_2) * total**2
        rest = rows.place - self.reach * _direction(first, second, self.step)
        last = jnp.broadcast_to(_parts(self.step, rest.dtype), (len(rest), 2))
        packed = packed.at[index].set(jnp.concatenate([rest, first, second, jnp.zeros_like(rest), last], axis=1))
        return Rows(packed, self.step + 1, next_reach)

    def slowed(self, factor: float) -> "Rows":
        """The same places, before steps whose rates are by this factor smaller than those that were to come."""
        slower = eqx.tree_at(lambda rows: rows.reach, self, factor * self.reach)
        n = self.packed.shape[1] // 4
        shift = self._up_to_date(self.packed).place - slower._up_to_date(self.packed).place
        return eqx.tree_at(lambda rows: rows.packed, slower, self.packed.at[:, :n].add(shift))

    def _up_to_date(self, packed: Float[Array, "A C"]) -> Moving:
        n = packed.shape[1] // 4
        rest, first, second, _, last = jnp.split(packed, [n, 2 * n, 3 * n, 4 * n], axis=1)
        n_steps = _whole(_parts(self.step, rest.dtype) - last)
        to_go = self.reach * _power(_RHO, n_steps)
        place = rest + to_go * _direction(first, second, _whole(last))
        return Moving(place, _power(BETA_1, n_steps) * first, _power(BETA_2, n_steps) * second)


@jit
def all_rows(rows: Rows) -> Diagonal:
    """q(u) as it is now."""
    return rows._up_to_date(rows.packed).variational


def _parts(step: Int[Array, ""], dtype: Any) -> Float[Array, " 2"]:
    """The number of a step in two, which float32 has exactly where it does not have the whole."""
    return jnp.stack([step // _PART, step % _PART]).astype(dtype)


def _whole(parts: Float[Array, "*A 2"]) -> Float[Array, "*A 1"]:
    return _PART * parts[..., :1] + parts[..., 1:]


def _direction(first: Array, second: Array, step: Array) -> Array:
    """d after some step."""
    unbiased = -jnp.expm1(np.log(BETA_2) * step.astype(first.dtype))
    return first / (jnp.sqrt(second) + EPSILON * jnp.sqrt(unbiased))


def _power(base: float, exponent: Array) -> Array:
    return jnp.exp(np.log(base) * exponent)
