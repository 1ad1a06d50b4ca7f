import warnings

import numpy as np
import pytest

from swsgp.errors import FitWarning
from swsgp.ops import approximate, nearest
from swsgp.ops.nearest import Search


@pytest.fixture
def points(rng):
    """Points near a plane in 30 dimensions."""
    plane = rng.normal(size=(3, 30))
    return [(rng.normal(size=(n, 3)) @ plane + 0.01 * rng.normal(size=(n, 30))).astype("float32") for n in (300, 4000)]


def recall(found, true):
    return np.mean([len(np.intersect1d(*pair)) / true.shape[1] for pair in zip(found, true, strict=True)])


def test_most_of_the_nearest_are_found_nearest_first_and_the_share_is_said(points, monkeypatch):
    x, z = points
    factors = np.linspace(0.5, 2.0, 30)
    true = Search(z, factors)(x, 20)
    monkeypatch.setattr(nearest, "_MIN_APPROXIMATE", 1)
    with pytest.warns(FitWarning, match=r"4,000 inducing inputs .* 9\d\.\d%|100\.0%"):
        found = Search(z, factors, n_approximate=len(x))(x, 20)
    assert found.dtype == np.int32
    assert found.shape == true.shape
    assert recall(found, true) > approximate.LEAST_RECALL - 0.02
    distance = np.sum(((x[:, None] - z[found]) * factors) ** 2, axis=2)
    assert np.all(np.diff(distance, axis=1) > -1e-3)
    assert all(len(set(row)) == 20 for row in found)


def test_lists_that_hold_too_few_are_made_up_for(rng):
    """One point far from all others: its own list is nearly empty."""
    z = rng.normal(size=(500, 30)).astype("float32")
    z[0] = 100.0
    with pytest.warns(FitWarning, match="approximately"):
        found = approximate.Lists(z)(z, 15)
    assert found.min() >= 0
    assert found[0, 0] == 0
    assert all(len(set(row)) == 15 for row in found)


def test_predictions_and_short_searches_are_exact(points):
    x, z = points
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact = Search(z, np.ones(30))(x, 5)
        np.testing.assert_array_equal(Search(z, np.ones(30), n_approximate=len(x))(x, 5), exact)


def test_without_the_library_the_search_is_exact_and_one_line_says_so(points, monkeypatch):
    x, z = points
    exact = Search(z, np.ones(30))(x, 5)
    monkeypatch.setattr(nearest, "_MIN_APPROXIMATE", 1)
    monkeypatch.setattr(approximate, "find_spec", lambda name: None)
    approximate.is_installed.cache_clear()
    try:
        with pytest.warns(FitWarning, match=r"swsgp\[faiss\]"):
            found = Search(z, np.ones(30), n_approximate=len(x))(x, 5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = Search(z, np.ones(30), n_approximate=len(x))(x, 5)
        np.testing.assert_array_equal(found, exact)
        np.testing.assert_array_equal(again, exact)
    finally:
        approximate.is_installed.cache_clear()
