import numpy as np
import pyarrow as pa
import pytest

from swsgp.arrays import as_inputs, as_target
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


def test_missing_values_of_any_kind_are_named():
    masked = np.ma.masked_array(np.ones((3, 2)), mask=[[0, 0], [0, 1], [0, 0]])
    for table in (masked, Frame(a=[1, 2], b=[None, 3])):
        with pytest.raises(DataError, match="1 NaN or infinite values in column"):
            as_inputs(table)


@pytest.mark.parametrize(
    "values",
    [
        [[1.0, 2.0], [3.0]],
        np.array([["1", "2"]], dtype=object),
        np.array([[b"1"]], dtype=object),
        np.array([["2020-01-01"]], dtype="datetime64[D]"),
        np.array([[1 + 2j]]),
        np.array([[{}]], dtype=object),
    ],
)
def test_what_is_not_a_table_of_numbers_is_refused(values):
    with pytest.raises(DataError, match="must be"):
        as_inputs(values)


def test_numbers_too_large_for_any_float_are_infinite():
    with pytest.raises(DataError, match="infinite values in column 0"):
        as_inputs(np.array([[10**400]], dtype=object))


def test_an_arrow_table_has_named_columns():
    with pytest.raises(DataError, match="in column height"):
        as_inputs(pa.table({"age": [1.0, 2.0], "height": [1.0, float("nan")]}))
