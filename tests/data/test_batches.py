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


@pytest.mark.parametrize(("n_rows", "fraction", "n_held"), [(100, 0.1, 10), (2, 0.01, 1), (10, 0.99, 9)])
def test_held_out_rows_and_the_others_make_up_the_table(n_rows, fraction, n_held):
    rows, held = split_held_out(n_rows, fraction, seed=0)
    assert len(held) == n_held
    assert sorted([*rows, *held]) == list(range(n_rows))
