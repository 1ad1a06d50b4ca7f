import numpy as np
import pytest

from swsgp.data.tables import as_inputs, as_target
from swsgp.errors import DataError


class Frame:
    """Anything with named columns and values, as data frames have."""

    def __init__(self, **columns):
        self.columns = list(columns)
        self._values = np.column_stack([np.asarray(column, dtype=object) for column in columns.values()])

    def __array__(self, dtype=None, copy=None):
        return self._values if dtype is None else self._values.astype(dtype)


def test_numbers_of_any_kind_become_float64():
    for dtype in (bool, np.int8, np.uint16, np.float32):
        array = as_inputs(np.ones((3, 2), dtype=dtype))
        assert array.dtype == np.float64
        assert array.shape == (3, 2)


def test_bad_columns_are_named():
    with pytest.raises(DataError, match="text or other objects in column city; encode or drop"):
        as_inputs(Frame(age=[1, 2], city=["a", "b"]))
    with pytest.raises(DataError, match="3 NaN or infinite values in columns age, height"):
        as_inputs(Frame(age=[1, np.nan], weight=[1, 2], height=[np.inf, np.nan]))


def test_a_target_may_be_a_single_column():
    assert as_target(np.ones((4, 1))).shape == (4,)
    with pytest.raises(DataError, match="one value for each row"):
        as_target(np.ones((4, 2)))
