r"""Whole functions drawn from q, which can be evaluated at any number of points.

A function g from the prior, by random features, and inducing variables u from q(u) make

$$ f(x) = g(x) + a(x)^\top (u - g(Z_w)), \qquad a(x) = K_w^{-1} k_w(x), $$

a draw from the process whose marginals and joint covariances the `Predictor` gives. With landmarks, g is first freed of
what these explain, and $\phi(x)^\top v$ is added with v from q(v).
"""

import jax.numpy as jnp
import numpy as np

from swsgp.arrays import inputs_for, to_power_of_two
from swsgp.errors import SettingError
from swsgp.gp.active import PerPoint, SearchInducing
from swsgp.gp.model import SparseGP, prepared
from swsgp.gp.random_features import random_features
from swsgp.gp.variational import Diagonal
from swsgp.ops.compiled import jit
from swsgp.shapes import Array, precision_scope

N_FEATURES = 4096
_MAX_ROWS = 1024


class Functions:
    """Some functions drawn from a model with one latent function, a diagonal S and each point's own active set."""

    def __init__(self, model: SparseGP, n_functions: int, rng: np.random.Generator, n_features: int = N_FEATURES):
        active, q, offset = model.active_prediction, model.variational, model.offset
        if not (isinstance(active, PerPoint) and isinstance(q, Diagonal) and model.likelihood.n_latent == 1):
            raise SettingError("functions are drawn from models of numbers with active='per-point' and a diagonal S.")
        self._n_inducing, n_columns = model.inducing.shape
        self._precision, self._n_neighbors = model.precision, active.n_neighbors
        self._features = random_features(model.covariance, n_columns, n_features, rng)
        self._weights = rng.standard_normal((n_features, n_functions))
        std = np.exp(np.asarray(q.log_std, dtype=np.float64))
        u = np.asarray(q.mean, dtype=np.float64) + std * rng.standard_normal((self._n_inducing, n_functions))
        self._offset = 0.0 if offset is None else float(offset[0])
        with precision_scope(self._precision):
            z = np.asarray(model.inducing)
            self._search = SearchInducing(model.metric, z)
            self._model = prepared(model)
            self._v = self._explained = np.zeros((0, n_functions))
            landmarks = self._model.landmarks
            if landmarks is not None:
                root = np.asarray(landmarks.root[0], dtype=np.float64)
                self._v = np.asarray(landmarks.mean) + root @ rng.standard_normal((len(root), n_functions))
                at_landmarks = self._features(np.asarray(landmarks.inputs)) @ self._weights
                self._explained = np.asarray(landmarks.whitening) @ at_landmarks
            # As the inducing variables in training, g has some jitter there.
            scale = float(jnp.mean(model.covariance.diagonal(model.inducing)))
            jitter = np.sqrt(float(model.jitter) * scale) * rng.standard_normal(u.shape)
            seen = [self._seen(z[rows]) for rows in _parts(len(z))]
            g = [self._prior(z[rows], phi) for rows, phi in zip(_parts(len(z)), seen, strict=True)]
            self._gap = u - np.concatenate(g) - jitter

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Values at points, (len(x), n_functions)."""
        x = inputs_for(x, self._model.inducing.shape[1], self._precision)
        with precision_scope(self._precision):
            return np.concatenate([self._at(x[rows]) for rows in _parts(len(x))]) + self._offset

    def _at(self, x: np.ndarray) -> np.ndarray:
        rows = to_power_of_two(x)
        own, seen = self._search(rows, self._n_neighbors), self._seen(rows)
        a = np.asarray(_weights_of(self._model, rows, own, seen))
        near = np.einsum("rh,rhs->rs", a, self._gap[own])
        return (self._prior(rows, seen) + seen @ self._v + near)[: len(x)]

    def _seen(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(_seen_from(self._model, to_power_of_two(x)))[: len(x)]

    def _prior(self, x: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """g, without what landmarks explain."""
        return self._features(x) @ self._weights - seen @ self._explained


def _parts(n: int) -> list[slice]:
    return [slice(start, start + _MAX_ROWS) for start in range(0, n, _MAX_ROWS)]


@jit
def _seen_from(model: SparseGP, x: Array) -> Array:
    return model.seen_from(x)


@jit
def _weights_of(model: SparseGP, x: Array, index: Array, seen: Array) -> Array:
    return model.own_system(x, index, seen).weights
