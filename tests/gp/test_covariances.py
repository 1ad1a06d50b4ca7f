import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import finite_difference, matern52
from tolerances import EXACT

from swsgp import RBF, Columns, Constant, Linear, Matern, Matern12, Matern32, Matern52, RationalQuadratic
from swsgp.errors import SettingError
from swsgp.gp.covariances import check_columns

LENGTHSCALE = [0.7, 2.0, 1.3]


def all_covariances():
    return {
        "matern12": Matern12(LENGTHSCALE, 1.7),
        "matern32": Matern32(LENGTHSCALE, 1.7),
        "matern52": Matern52(LENGTHSCALE, 1.7),
        "matern": Matern(LENGTHSCALE, 1.7, (1.0, 2.0, 5.0)),
        "rbf": RBF(LENGTHSCALE, 1.7),
        "rational quadratic": RationalQuadratic(LENGTHSCALE, 1.7, 0.8),
        "one lengthscale": RBF(0.9, 0.4),
        "linear": Linear([0.5, 1.0, 2.0]),
        "constant": Constant(0.6),
        "sum": Matern32(LENGTHSCALE) + Linear(0.3),
        "product": RBF(2.0) * Matern12(LENGTHSCALE),
        "columns": Columns(Matern52([0.5, 1.0], 1.2), [2, 0]),
        "nested": (Constant(0.2) + RBF(1.0)) * Columns(Linear(0.4) + Constant(1.0), [1]),
    }


NAMES = list(all_covariances())


def test_values_equal_the_formulas(float64):
    x, y = jnp.asarray([0.3, -1.0, 2.0]), jnp.asarray([1.0, 0.5, 2.5])
    r = np.sqrt(np.sum(((np.asarray(x) - np.asarray(y)) / LENGTHSCALE) ** 2))
    expected = {
        "matern12": 1.7 * np.exp(-r),
        "matern32": 1.7 * (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
        "matern52": 1.7 * (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r),
        "rbf": 1.7 * np.exp(-(r**2) / 2),
        "rational quadratic": 1.7 * (1 + r**2 / 1.6) ** -0.8,
        "linear": 0.5 * 0.3 - 0.5 + 2.0 * 5.0,
        "constant": 0.6,
    }
    parts = (expected[name] for name in ("matern12", "matern32", "matern52"))
    expected["matern"] = np.dot([1 / 8, 2 / 8, 5 / 8], list(parts))
    for name, value in expected.items():
        np.testing.assert_allclose(all_covariances()[name](x, y), value, **EXACT)


def test_matern52_matrix_equals_the_oracle(float64, rng):
    x, z = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    ours = Matern52(LENGTHSCALE, 1.7).matrix(jnp.asarray(x), jnp.asarray(z))
    np.testing.assert_allclose(ours, matern52(x, z, np.asarray(LENGTHSCALE), 1.7), **EXACT)


@pytest.mark.parametrize("name", NAMES)
def test_matrix_and_diagonal_equal_the_scalar_formula_on_every_pair(float64, rng, name):
    covariance = all_covariances()[name]
    x, z = jnp.asarray(rng.normal(size=(4, 3))), jnp.asarray(rng.normal(size=(6, 3)))
    for other in (z, x):
        pairs = [[covariance(one, two) for two in other] for one in x]
        np.testing.assert_allclose(covariance.matrix(x, other), pairs, **EXACT)
    np.testing.assert_allclose(covariance.diagonal(x), [covariance(one, one) for one in x], **EXACT)


@pytest.mark.parametrize("name", NAMES)
def test_matrix_is_symmetric_and_positive_semidefinite(float64, rng, name):
    x = jnp.asarray(rng.normal(size=(20, 3)))
    k = np.asarray(all_covariances()[name].matrix(x, x))
    np.testing.assert_allclose(k, k.T, **EXACT)
    assert np.linalg.eigvalsh(k).min() > -1e-10


@pytest.mark.parametrize("name", NAMES)
def test_gradients_equal_finite_differences(float64, rng, name):
    covariance = all_covariances()[name]
    x, z = rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
    weight = rng.normal(size=(3, 3))

    def total(covariance, x, z):
        return jnp.sum(weight * covariance.matrix(x, z))

    gradient = jax.grad(total, (1, 2))(covariance, jnp.asarray(x), jnp.asarray(z))
    for i, at in enumerate((x, z)):
        others = [x, z]

        def moved(value, i=i, others=others):
            return float(total(covariance, *(jnp.asarray(value if j == i else others[j]) for j in range(2))))

        np.testing.assert_allclose(gradient[i], finite_difference(moved, at), rtol=1e-5, atol=1e-7)
    leaves, structure = jax.tree.flatten(covariance)
    for i, leaf in enumerate(jax.tree.leaves(jax.grad(total)(covariance, jnp.asarray(x), jnp.asarray(z)))):

        def changed(value, i=i):
            new = structure.unflatten([jnp.asarray(value) if j == i else old for j, old in enumerate(leaves)])
            return float(total(new, jnp.asarray(x), jnp.asarray(z)))

        np.testing.assert_allclose(leaf, finite_difference(changed, np.array(leaves[i])), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_equal_finite_differences_where_points_coincide(float64, rng, name):
    """K_zz has every point at distance 0 from itself, and a subset of the data lies on data."""
    covariance = all_covariances()[name]
    z = jnp.asarray(rng.normal(size=(4, 3)))
    x = jnp.concatenate([z[:2], jnp.asarray(rng.normal(size=(2, 3)))])
    weight = rng.normal(size=(2, 4, 4))

    def total(covariance):
        return jnp.sum(weight[0] * covariance.matrix(z, z)) + jnp.sum(weight[1] * covariance.matrix(x, z))

    leaves, structure = jax.tree.flatten(covariance)
    for i, leaf in enumerate(jax.tree.leaves(jax.grad(total)(covariance))):

        def changed(value, i=i):
            new = structure.unflatten([jnp.asarray(value) if j == i else old for j, old in enumerate(leaves)])
            return float(total(new))

        np.testing.assert_allclose(leaf, finite_difference(changed, np.array(leaves[i])), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["matern12", "matern32", "matern52", "rbf", "rational quadratic"])
def test_gradient_at_coinciding_points_is_finite(name):
    covariance, x = all_covariances()[name], jnp.ones((2, 3))
    gradient = jax.grad(lambda c, x: jnp.sum(c.matrix(x, x)), (0, 1))(covariance, x)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("name", ["matern12", "matern32", "matern52", "matern", "rbf"])
def test_points_farther_than_a_square_can_tell_are_independent(name):
    """In float32 the square of 1e15 lengthscales is a number, and that of its square is not."""
    covariance, z = all_covariances()[name], jnp.zeros((1, 3))
    for distance in (1e15, 1e25):
        x = jnp.full((1, 3), distance, jnp.float32)
        np.testing.assert_allclose(covariance.matrix(x, z), 0.0, atol=1e-20)
        gradient = jax.grad(lambda c, x: jnp.sum(c.matrix(x, z)), (0, 1))(covariance, x)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("name", NAMES)
def test_metric_orders_points_as_the_covariance_does(float64, rng, name):
    covariance = all_covariances()[name]
    x, z = jnp.asarray(rng.normal(size=(1, 3))), jnp.asarray(rng.normal(size=(40, 3)))
    factors = covariance.metric(3)
    if factors is None:
        assert name in ("linear", "constant", "product", "nested")
        return
    if name == "sum":
        covariance = covariance.first
    distance = np.sum(((np.asarray(x) - z) * factors) ** 2, axis=1)
    np.testing.assert_array_equal(np.argsort(distance), np.argsort(-np.asarray(covariance.matrix(x, z))[0]))


def test_beside_a_linear_covariance_another_says_who_is_near():
    for mixed in (Matern32(LENGTHSCALE) + Linear(9.0), Linear(9.0) + Matern32(LENGTHSCALE)):
        np.testing.assert_allclose(mixed.metric(3), 1 / np.asarray(LENGTHSCALE), rtol=1e-6)
    scaled = Matern32(LENGTHSCALE) + Constant(2.0) * Columns(Linear(1.0), [1])
    np.testing.assert_allclose(scaled.metric(3), 1 / np.asarray(LENGTHSCALE), rtol=1e-6)
    three = Matern32(LENGTHSCALE) + RBF(1.0) + Linear(9.0)
    assert three.metric(3) is None
    assert three.local() is three.first
    assert isinstance((Linear(1.0) + Matern32(LENGTHSCALE) + RBF(1.0)).local().first, Matern32)
    assert (Linear(1.0) + Constant(1.0)).metric(3) is None
    assert (Linear(1.0) * Matern32(LENGTHSCALE)).metric(3) is None


def test_constants_do_not_change_who_is_near():
    scaled = Constant(2.0) * Matern52(LENGTHSCALE) + Constant(1.0)
    np.testing.assert_allclose(scaled.metric(3), 1 / np.asarray(LENGTHSCALE), rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "a", None])
def test_parameters_that_are_not_positive_are_refused(value):
    with pytest.raises(SettingError, match="must be positive"):
        RBF(value)
    with pytest.raises(SettingError, match="must be positive"):
        Constant(value)


def test_parameters_that_do_not_fit_the_columns_are_refused():
    with pytest.raises(SettingError, match="one number or 4, one for each column"):
        check_columns(Matern52(LENGTHSCALE), 4)
    for vector in (RBF(1.0, [1.0, 2.0, 3.0]), Constant([1.0, 2.0, 3.0]), RationalQuadratic(1.0, 1.0, [1.0, 1.0, 2.0])):
        with pytest.raises(SettingError, match="give one number"):
            check_columns(vector, 3)
    with pytest.raises(SettingError, match="position 5"):
        check_columns(Constant() + Columns(RBF(), [0, 5]), 3)
    with pytest.raises(SettingError, match="different positions"):
        Columns(RBF(), [1, 1])
    for covariance in all_covariances().values():
        check_columns(covariance, 3)


def test_a_mixture_of_materns_takes_three_shares():
    with pytest.raises(SettingError, match="shares must be three numbers"):
        Matern(LENGTHSCALE, shares=(1.0, 2.0))
    check_columns(Matern(LENGTHSCALE), 3)
