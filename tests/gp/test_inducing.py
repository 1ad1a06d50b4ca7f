import numpy as np
import pytest

from swsgp.gp.inducing import starting_inputs


def test_a_subset_is_made_of_different_rows(rng):
    x = np.repeat(rng.normal(size=(30, 2)), 3, axis=0)
    z = starting_inputs(x, 30, "subset", seed=1)
    assert len(np.unique(z, axis=0)) == 30
    assert {tuple(row) for row in z} <= {tuple(row) for row in x}


def test_a_subset_repeats_rows_only_where_there_are_too_few(rng):
    x = np.repeat(rng.normal(size=(5, 2)), 4, axis=0)
    z = starting_inputs(x, 12, "subset", seed=1)
    assert z.shape == (12, 2)
    assert len(np.unique(z, axis=0)) == 5


@pytest.mark.parametrize("placement", ["kmeans", "subset"])
def test_the_same_seed_gives_the_same_inputs(rng, placement):
    x = rng.normal(size=(200, 3))
    one, same, other = (starting_inputs(x, 20, placement, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_kmeans_finds_clusters(rng):
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    x = np.concatenate([centre + 0.1 * rng.normal(size=(50, 2)) for centre in centres])
    z = starting_inputs(x, 3, "kmeans", seed=0)
    distance = np.linalg.norm(centres[:, None] - z[None], axis=-1)
    assert (distance.min(axis=1) < 0.1).all()


@pytest.mark.parametrize("placement", ["kmeans", "subset"])
def test_one_row_and_rows_that_are_all_equal_will_do(placement):
    assert starting_inputs(np.ones((1, 2)), 1, placement, 0).shape == (1, 2)
    assert np.isfinite(starting_inputs(np.ones((9, 2)), 4, placement, 0)).all()


def test_given_inputs_are_copied(rng):
    given = rng.normal(size=(4, 2))
    z = starting_inputs(rng.normal(size=(9, 2)), 4, given, 0)
    z[:] = 0
    assert given.any()
