"""Functions drawn whole vary as the joint covariance says, and random features as the kernel."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from models import H, make, toy

from swsgp import (
    RBF,
    All,
    Columns,
    Constant,
    Linear,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    PerPoint,
    Predictor,
    RationalQuadratic,
)
from swsgp.errors import SettingError
from swsgp.gp.functions import Functions
from swsgp.gp.landmarks import Landmarks
from swsgp.gp.random_features import random_features

KERNELS = {
    "rbf": RBF([0.7, 1.5], 2.0),
    "matern12": Matern12(1.2),
    "matern32": Matern32([0.7, 1.5]),
    "matern52": Matern52([0.7, 1.5], 0.5),
    "matern": Matern([0.7, 1.5], 0.5, (1.0, 2.0, 3.0)),
    "rational-quadratic": RationalQuadratic(0.8, 1.3, 0.7),
    "linear": Linear([0.5, 2.0]),
    "sum": Matern52(1.0) + Linear(0.3) + Constant(0.2),
    "product": (RBF(1.0) + Constant(0.5)) * (Matern32(2.0) + Linear(0.4)),
    "columns": Columns(RBF(0.5), (1,)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_random_features_approximate_the_kernel(float64, rng, name):
    x = rng.normal(size=(8, 2))
    features = random_features(KERNELS[name], 2, 100_000, rng)(x)
    exact = np.asarray(KERNELS[name].matrix(jnp.asarray(x), jnp.asarray(x)))
    np.testing.assert_allclose(features @ features.T, exact, atol=0.03 * exact.max())


@pytest.mark.parametrize("has_landmarks", [False, True])
def test_functions_have_the_mean_and_the_joint_covariance_of_the_model(float64, rng, has_landmarks):
    x, _ = toy(rng)
    model = make(x, PerPoint(H), "diag", offset=np.array([0.4]))
    if has_landmarks:
        landmarks = Landmarks.at(jnp.asarray(rng.normal(size=(4, 2))), 1)
        landmarks = eqx.tree_at(lambda p: p.mean, landmarks, jnp.asarray(rng.normal(size=(4, 1))))
        model = eqx.tree_at(lambda m: m.landmarks, model, landmarks, is_leaf=lambda v: v is None)
    draws = Functions(model, 6000, rng, n_features=6000)(x)
    mean, cov = Predictor(model).joint(x)
    size = np.diagonal(cov[0]).max()
    np.testing.assert_allclose(draws.mean(axis=1), mean[:, 0], atol=5 * np.sqrt(size / 6000))
    np.testing.assert_allclose(np.cov(draws), cov[0], atol=0.08 * size)


def test_a_function_is_the_same_wherever_it_is_asked(float64, rng):
    x, _ = toy(rng, 30)
    model = make(x, PerPoint(H), "diag")
    one, same, other = (Functions(model, 3, np.random.default_rng(seed)) for seed in (0, 0, 1))
    whole = one(x)
    assert whole.shape == (30, 3)
    np.testing.assert_allclose(same(x), whole, rtol=1e-12)
    np.testing.assert_allclose(np.concatenate([one(x[:7]), one(x[7:])]), whole, rtol=1e-9, atol=1e-9)
    assert np.abs(other(x) - whole).max() > 0.1


def test_models_without_such_functions_are_refused(float64, rng):
    x, _ = toy(rng)
    with pytest.raises(SettingError, match="active='per-point'"):
        Functions(make(x, All()), 1, rng)
