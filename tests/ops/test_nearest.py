import jax.numpy as jnp
import numpy as np
import pytest

from swsgp.ops import nearest as module
from swsgp.ops.nearest import nearest, search, union


def distances(x, z, index, factors=1.0):
    return np.sqrt((((x[:, None] - z[index]) * factors) ** 2).sum(-1))


@pytest.mark.parametrize(("n", "m", "d", "h"), [(1, 1, 1, 1), (5, 7, 1, 7), (40, 300, 3, 16), (9, 50, 20, 4)])
@pytest.mark.parametrize("tree", [False, True])
def test_search_finds_the_nearest_in_order(rng, monkeypatch, n, m, d, h, tree):
    monkeypatch.setattr(module, "_TREE_MIN_POINTS", 1 if tree else m + 1)
    monkeypatch.setattr(module, "_TREE_MAX_COLUMNS", 99)
    monkeypatch.setattr(module, "_MAX_SCORES", 8 * m)
    x, z = rng.normal(size=(n, d)).astype("float32"), rng.normal(size=(m, d)).astype("float32")
    factors = rng.uniform(0.1, 3.0, size=d).astype("float32")
    index = search(x, z, factors, h)
    assert index.shape == (n, h)
    assert index.dtype == np.int32
    # Distances, not indices, are compared: equal ones may swap ranks.
    best = np.sort(np.sqrt((((x[:, None] - z[None]) * factors) ** 2).sum(-1)), axis=1)[:, :h]
    np.testing.assert_allclose(distances(x, z, index, factors), best, rtol=1e-4, atol=1e-5)
    assert all(len(set(row)) == h for row in index)


def test_an_offset_common_to_all_points_does_not_matter(rng):
    x, z = rng.normal(size=(20, 2)).astype("float32"), rng.normal(size=(30, 2)).astype("float32")
    near = np.asarray(nearest(jnp.asarray(x), jnp.asarray(z), jnp.ones(2), 5))
    shifted = np.asarray(nearest(jnp.asarray(x + 2000), jnp.asarray(z + 2000), jnp.ones(2), 5))
    np.testing.assert_allclose(distances(x, z, near), distances(x, z, shifted), atol=1e-2)


def test_union_takes_all_first_choices_before_any_second_choice():
    per_point = jnp.asarray([[4, 1, 2, 0], [4, 3, 0, 1], [5, 3, 1, 2]])
    assert set(np.asarray(union(per_point, 6, 2))) == {4, 5}
    assert set(np.asarray(union(per_point, 6, 4))) == {4, 5, 1, 3}


def test_union_cuts_the_last_rank_at_the_later_rows():
    per_point = jnp.asarray([[5, 1, 2], [4, 3, 0], [0, 3, 1]])
    assert set(np.asarray(union(per_point, 6, 2))) == {5, 4}
    assert set(np.asarray(union(per_point[::-1], 6, 2))) == {0, 4}


def test_union_of_one_point_is_its_own_neighbours():
    assert set(np.asarray(union(jnp.asarray([[3, 0, 2]]), 5, 3))) == {3, 0, 2}
