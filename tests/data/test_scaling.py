import numpy as np
import pytest

from swsgp import Scaling, load_set
from swsgp.errors import DataError


def test_columns_come_out_with_mean_0_and_spread_1(rng):
    x = rng.normal(size=(500, 3)) * [1.0, 100.0, 1e-4] + [0.0, 5.0, 1e3]
    scaled = Scaling.of(x).apply(x)
    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-6)
    np.testing.assert_allclose(scaled.std(axis=0), 1.0, rtol=1e-6)


def test_undo_is_the_inverse(rng):
    x = rng.normal(size=(50, 2)) * 7 + 3
    scaling = Scaling.of(x)
    np.testing.assert_allclose(scaling.undo(scaling.apply(x)), x)


def test_a_few_wild_values_do_not_squeeze_a_column_flat(rng):
    x = rng.normal(size=(10_000, 1))
    x[:4] = 1e5
    scaled = Scaling.of(x).apply(x)
    np.testing.assert_allclose(scaled[4:].std(), 1.0, rtol=0.05)
    assert scaled.max() > 1e4


@pytest.mark.parametrize("value", [0.0, 1.0, 1e9])
def test_a_constant_column_stays_finite(value):
    x = np.full((20, 1), value)
    scaling = Scaling.of(x)
    np.testing.assert_allclose(scaling.apply(x), 0.0)
    assert scaling.scale == 1.0


def test_a_column_of_mostly_zeros_keeps_what_it_says():
    x = np.zeros((1000, 1))
    x[:5] = 1.0
    assert Scaling.of(x).apply(x).max() > 5


def test_the_spikes_of_eeg_leave_its_signal_alone(data_folder):
    x = load_set("eeg").x
    spikes = (np.abs(x - np.median(x, axis=0)) > 1000).any(axis=1)
    assert spikes.sum() == 4
    np.testing.assert_allclose(Scaling.of(x).apply(x)[~spikes].std(axis=0), 1.0, rtol=0.05)


def test_values_that_are_not_finite_are_refused_with_their_column():
    x = np.ones((5, 3))
    x[2, 1] = np.nan
    with pytest.raises(DataError, match="1 NaN or infinite values in column 1"):
        Scaling.of(x)


def test_a_column_of_tiny_values_is_not_constant(rng):
    x = 1e-14 * rng.normal(size=(100, 1))
    np.testing.assert_allclose(Scaling.of(x).apply(x).std(), 1.0, rtol=1e-6)
