import numpy as np
import pytest

from swsgp.data.batches import RowStream, split_held_out


@pytest.mark.parametrize(("n_rows", "batch_size"), [(1, 1), (10, 3), (10, 10), (7, 64), (100, 8)])
def test_every_epoch_sees_every_row_once(n_rows, batch_size):
    stream = RowStream(n_rows, batch_size, seed=0)
    n_steps = stream.batch_size * n_rows
    rows = stream.batches(0, n_steps).ravel()
    for epoch in rows.reshape(-1, n_rows):
        assert sorted(epoch) == list(range(n_rows))


def test_a_batch_depends_on_seed_and_step_alone():
    whole = RowStream(23, 5, seed=1).batches(0, 40)
    again = RowStream(23, 5, seed=1)
    np.testing.assert_array_equal(whole[31:40], again.batches(31, 9))
    np.testing.assert_array_equal(whole[3:7], again.batches(3, 4))
    assert not np.array_equal(whole, RowStream(23, 5, seed=2).batches(0, 40))


@pytest.mark.parametrize(("n_rows", "n_lanes"), [(1100, 4), (4096, 16), (20_003, 64)])
def test_every_batch_has_as_many_rows_of_each_lane(n_rows, n_lanes):
    stream = RowStream(n_rows, 64, seed=0)
    assert stream.n_lanes == n_lanes
    batches = stream.batches(7, 2 * n_rows // 64)
    assert (batches % n_lanes == np.repeat(np.arange(n_lanes), 64 // n_lanes)).all()
    np.testing.assert_array_equal(stream.batches(20, 3), batches[13:16])
    # Each row comes up twice in about two epochs, and no order is like the one before.
    counts = np.bincount(batches.ravel(), minlength=n_rows)
    assert counts.min() >= 1
    assert counts.max() <= 3
    assert len(np.unique(batches[:, 0])) > 0.4 * len(batches)


def test_a_batch_that_must_stay_whole_is_in_random_order():
    stream = RowStream(5000, 64, seed=0, whole_batches=True)
    assert stream.n_lanes == 1
    first = stream.batches(0, 70)[:, 0]
    assert abs(first.mean() - 2500) < 600


@pytest.mark.parametrize(("n_rows", "fraction", "n_held"), [(100, 0.1, 10), (2, 0.01, 1), (10, 0.99, 9)])
def test_held_out_rows_and_the_others_make_up_the_table(n_rows, fraction, n_held):
    rows, held = split_held_out(n_rows, fraction, seed=0)
    assert len(held) == n_held
    assert sorted([*rows, *held]) == list(range(n_rows))
