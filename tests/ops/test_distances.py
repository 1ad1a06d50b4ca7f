import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import EXACT

from swsgp.ops import distances


def brute(x, z):
    return ((x[:, None] - z[None]) ** 2).sum(-1)


@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (3, 5, 2), (4, 4, 784), (7, 2, 3)])
@pytest.mark.parametrize("expanded", [False, True])
def test_values_and_gradients_equal_the_definition(float64, rng, monkeypatch, n, m, d, expanded):
    if expanded:
        monkeypatch.setattr(distances, "_MAX_DIFFERENCES", 0)
    x, z = jnp.asarray(rng.normal(size=(n, d))), jnp.asarray(rng.normal(size=(m, d)) + 3)
    weight = rng.normal(size=(n, m))
    np.testing.assert_allclose(distances.squared_distances(x, z), brute(x, z), **EXACT)
    ours = jax.grad(lambda x, z: jnp.sum(weight * distances.squared_distances(x, z)), (0, 1))(x, z)
    plain = jax.grad(lambda x, z: jnp.sum(weight * brute(x, z)), (0, 1))(x, z)
    for one, other in zip(ours, plain, strict=True):
        np.testing.assert_allclose(one, other, **EXACT)


def test_distances_within_a_set_equal_those_between_it_and_itself(float64, rng):
    z, weight = jnp.asarray(rng.normal(size=(6, 3))), rng.normal(size=(6, 6))
    np.testing.assert_allclose(distances.squared_distances_within(z), brute(z, z), **EXACT)
    ours = jax.grad(lambda z: jnp.sum(weight * distances.squared_distances_within(z)))(z)
    np.testing.assert_allclose(ours, jax.grad(lambda z: jnp.sum(weight * brute(z, z)))(z), **EXACT)


def test_close_points_keep_their_distance_in_float32():
    x = jnp.asarray([[1000.0]], jnp.float32)
    z = jnp.asarray([[1000.0 + 2**-10]], jnp.float32)
    assert float(distances.squared_distances(x, z)[0, 0]) == 2.0**-20
