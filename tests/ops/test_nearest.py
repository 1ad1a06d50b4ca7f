import jax.numpy as jnp
import numpy as np
import pytest

from swsgp.ops import native
from swsgp.ops import nearest as module
from swsgp.ops.nearest import Search, largest, union

# Ways that are for any number of columns here.
_IN_BOXES = ("boxes", "tree", "boxes beside a device", "few in boxes beside a device")


def distances(x, z, index, factors=1.0):
    return np.sqrt((((x[:, None] - z[index]) * factors) ** 2).sum(-1))


@pytest.mark.parametrize(("n", "m", "d", "h"), [(1, 1, 1, 1), (5, 7, 1, 7), (40, 300, 3, 16), (9, 50, 20, 4)])
@pytest.mark.parametrize(
    "way",
    [
        "boxes",
        "tree",
        "plain",
        "blocks",
        "device",
        "boxes beside a device",
        "few in boxes beside a device",
        "few beside a device",
    ],
)
def test_search_finds_the_nearest_in_order(rng, monkeypatch, n, m, d, h, way):
    for name in ("_BOXES_MAX_COLUMNS", "_TREE_MAX_COLUMNS"):
        monkeypatch.setattr(module, name, 99 if way in _IN_BOXES else 0)
    if way == "tree":
        monkeypatch.setattr(module.native, "is_available", lambda: False)
    if way in ("device", "boxes beside a device"):
        monkeypatch.setattr(module, "_MAX_ON_HOST", 0)
    monkeypatch.setattr(module, "_BOXES_MIN_POINTS", 1 if way == "boxes beside a device" else 10**9)
    monkeypatch.setattr(module, "_MIN_BLOCKWISE", 1 if way == "blocks" else 10**9)
    monkeypatch.setattr(module, "_MAX_SCORES", {"cpu": 8 * m, "other": 8 * m})
    if "device" in way:
        monkeypatch.setattr(module.jax, "default_backend", lambda: "gpu")
    x, z = rng.normal(size=(n, d)).astype("float32"), rng.normal(size=(m, d)).astype("float32")
    factors = rng.uniform(0.1, 3.0, size=d).astype("float32")
    index = Search(z, factors)(x, h)
    assert index.shape == (n, h)
    assert index.dtype == np.int32
    # Distances, not indices, are compared: equal ones may swap ranks.
    best = np.sort(np.sqrt((((x[:, None] - z[None]) * factors) ** 2).sum(-1)), axis=1)[:, :h]
    np.testing.assert_allclose(distances(x, z, index, factors), best, rtol=1e-4, atol=1e-5)
    assert all(len(set(row)) == h for row in index)


@pytest.mark.parametrize("way", ["boxes", "tree", "plain", "device"])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_an_offset_common_to_all_points_and_a_wild_one_do_not_matter(rng, monkeypatch, offset, way):
    """65 points are padded to 128 rows; the wild inducing input must not become the centre of anything."""
    for name in ("_BOXES_MAX_COLUMNS", "_TREE_MAX_COLUMNS"):
        monkeypatch.setattr(module, name, 99 if way in _IN_BOXES else 0)
    if way == "tree":
        monkeypatch.setattr(module.native, "is_available", lambda: False)
    if way == "device":
        monkeypatch.setattr(module, "_MAX_ON_HOST", 0)
        monkeypatch.setattr(module.jax, "default_backend", lambda: "gpu")
    x, z = rng.normal(size=(65, 3)), rng.normal(size=(500, 3))
    z[7] = 1e4
    x, z = (x + offset).astype("float32"), (z + offset).astype("float32")
    index = Search(z, np.ones(3, "float32"))(x, 4)
    exact = np.sqrt(((x[:, None].astype(float) - z[None]) ** 2).sum(-1))
    np.testing.assert_allclose(distances(x, z, index), np.sort(exact, axis=1)[:, :4], rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(native._native is None, reason="the compiled operations were not built")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("level", [0, None])
def test_boxes_leave_out_nothing_and_break_ties_by_index(rng, dtype, level):
    """Points on a coarse grid: many boxes, many equal distances, many equal points."""
    best = native._native.level()
    native._native.set_level(best if level is None else level)
    try:
        z = rng.integers(0, 12, size=(3001, 3)).astype(dtype)
        x = rng.integers(-2, 14, size=(130, 3)).astype(dtype)
        found, n_looked_at = native.Tree(z).nearest(x, 40)
    finally:
        native._native.set_level(best)
    far = ((x[:, None] - z[None]) ** 2).sum(-1)
    expected = np.lexsort((np.broadcast_to(np.arange(3001), far.shape), far), axis=1)[:, :40]
    np.testing.assert_array_equal(found, expected)
    assert 130 * 40 <= n_looked_at < 130 * 3001


@pytest.mark.parametrize("way", ["boxes", "plain", "blocks"])
def test_of_points_that_are_equally_far_the_first_are_nearest_whatever_rows_come_with_them(rng, monkeypatch, way):
    """Columns of zeros and ones: most distances are those of many other points, too."""
    monkeypatch.setattr(module, "_BOXES_MAX_COLUMNS", 99 if way == "boxes" else 0)
    monkeypatch.setattr(module, "_MIN_BLOCKWISE", 1 if way == "blocks" else 10**9)
    monkeypatch.setattr(module, "_MAX_NUMBERS", 5000)
    x, z = (rng.integers(0, 2, size=(n, 12)).astype("float32") for n in (90, 400))
    factors = np.repeat([1.0, 2.0], 6)
    far = (((x[:, None] - z[None]) * factors) ** 2).sum(-1)
    search = Search(z, factors)
    found = search(x, 20)
    np.testing.assert_array_equal(found, np.argsort(far, axis=1, kind="stable")[:, :20])
    alone = np.concatenate([search(x[i : i + 7], 20) for i in range(0, 90, 7)])
    np.testing.assert_array_equal(found, alone)


@pytest.mark.skipif(native._native is None, reason="the compiled operations were not built")
def test_boxes_refuse_what_does_not_fit():
    tree = native.Tree(np.zeros((5, 2)))
    with pytest.raises(ValueError, match="fit together"):
        tree.nearest(np.zeros((3, 2)), 6)
    with pytest.raises(ValueError, match="fit together"):
        tree.nearest(np.zeros((3, 3)), 2)
    assert tree.nearest(np.full((1, 2), np.nan), 2)[0].tolist() == [[0, 0]]


@pytest.mark.parametrize(("m", "n"), [(5, 5), (1000, 1), (1000, 15), (1023, 7), (4096, 64)])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_largest_in_groups_are_the_largest_and_ties_go_to_the_lower_index(rng, monkeypatch, m, n, device):
    monkeypatch.setattr(module.jax, "default_backend", lambda: device)
    scores = rng.integers(0, 20, size=(50, m)).astype("float32")
    scores[0] = -np.inf
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :n]
    np.testing.assert_array_equal(largest(jnp.asarray(scores), n), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("way", ["compiled", "plain", "device"])
def test_scores_that_are_no_numbers_come_last(float64, monkeypatch, dtype, way):
    if way == "plain":
        monkeypatch.setattr(module.native, "is_available", lambda: False)
    monkeypatch.setattr(module, "_MIN_GROUPED", 4)
    if way == "device":
        monkeypatch.setattr(module.jax, "default_backend", lambda: "gpu")
    scores = np.arange(300, dtype=dtype).reshape(3, 100)
    scores[0], scores[1, :3] = np.nan, np.nan
    found = np.asarray(largest(jnp.asarray(scores), 4))
    assert found.min() >= 0
    assert found.max() < 100
    assert found[1:].tolist() == [[99, 98, 97, 96]] * 2


def test_no_points_have_no_neighbours():
    assert Search(np.zeros((5, 2)), np.ones(2))(np.zeros((0, 2)), 3).shape == (0, 3)


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
