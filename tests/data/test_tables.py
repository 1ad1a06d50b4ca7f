"""Tables become numbers: named columns, text, missing values, and what is refused."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from swsgp.data.tables import Encoding, as_arrow, as_vector, is_complete, is_missing, name_of
from swsgp.errors import DataError, DataWarning, SettingError

VALUES = {"size": [1.5, 2.5, 4.0], "city": ["b", "a", "b"], "new": [True, False, True]}
FRAMES = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table}


@pytest.mark.parametrize("kind", FRAMES)
def test_tables_of_every_kind_become_the_same_numbers(kind):
    table = as_arrow(FRAMES[kind](VALUES))
    encoding = Encoding.of(table, max_categories=5, missing="error")
    assert encoding.names == ("size", "city", "new")
    assert encoding.categories == (None, ("a", "b"), None)
    expected = [[1.5, 0, 1, 1], [2.5, 1, 0, 0], [4.0, 0, 1, 1]]
    np.testing.assert_array_equal(encoding.apply(table), expected)
    np.testing.assert_array_equal(encoding.sources, [0, 1, 1, 2])
    np.testing.assert_array_equal(encoding.is_text, [False, True, True, False])


def test_categories_of_pandas_and_polars_are_text():
    for frame in (
        pd.DataFrame({"c": pd.Categorical(["x", "y", "x"])}),
        pl.DataFrame({"c": ["x", "y", "x"]}, {"c": pl.Categorical}),
    ):
        table = as_arrow(frame)
        np.testing.assert_array_equal(Encoding.of(table, 5, "error").apply(table), [[1, 0], [0, 1], [1, 0]])


def test_arrays_and_columns_without_names_are_not_tables():
    assert as_arrow(np.zeros((2, 2))) is None
    assert as_arrow([[1, 2]]) is None
    assert as_arrow(pd.DataFrame(np.zeros((2, 2)))) is None


def test_columns_may_come_in_another_order():
    encoding = Encoding.of(pa.table(VALUES), 5, "error")
    turned = pa.table({name: VALUES[name] for name in reversed(VALUES)})
    np.testing.assert_array_equal(encoding.apply(turned), encoding.apply(pa.table(VALUES)))


def test_columns_that_are_missing_extra_or_twice_are_named():
    encoding = Encoding.of(pa.table(VALUES), 5, "error")
    with pytest.raises(DataError, match="lacks column 'size'"):
        encoding.apply(pa.table(VALUES).drop_columns(["size"]))
    with pytest.raises(DataError, match="has column 'more', which the model was not"):
        encoding.apply(pa.table({**VALUES, "more": [1, 2, 3]}))
    with pytest.raises(DataError, match="more than one column named"):
        Encoding.of(pa.table([[1], [2]], names=["a", "a"]), 5, "error")


def test_a_text_column_with_too_many_values_is_refused_by_name():
    table = pa.table({"street": [f"s{i}" for i in range(30)]})
    with pytest.raises(DataError, match="'street' is text with 30 different values, more than max_categories=20"):
        Encoding.of(table, 20, "error")


def test_dates_and_empty_columns_are_refused_by_name():
    with pytest.raises(DataError, match=r"'when' has values of type timestamp.*leave it out"):
        Encoding.of(as_arrow(pd.DataFrame({"when": pd.to_datetime(["2024-01-01", "2024-02-01"])})), 5, "error")
    with pytest.raises(DataError, match="'nothing' has no values"):
        Encoding.of(pa.table({"nothing": pa.nulls(3)}), 5, "error")
    with pytest.raises(DataError, match="'nothing' has no values"):
        Encoding.of(pa.table({"nothing": pa.nulls(3, pa.string())}), 5, "fill")
    with pytest.raises(DataError, match="'nothing' has no values"):
        Encoding.of(pa.table({"nothing": pa.nulls(3, pa.float64())}), 5, "fill")


def test_columns_of_mixed_types_are_refused():
    with pytest.raises(DataError, match="different types"):
        as_arrow(pd.DataFrame({"a": [1, "x", 2.5]}, dtype=object))


def test_missing_values_are_refused_with_columns_and_counts():
    table = pa.table({"a": [1.0, None, float("nan")], "b": ["x", None, "y"], "c": [1, 2, 3]})
    with pytest.raises(DataError, match=r"missing \(NaN\) in columns 'a' \(2\), 'b' \(1\); drop"):
        Encoding.of(table, 5, "error").apply(table)


def test_missing_values_are_filled_with_medians_if_asked():
    table = pa.table({"a": [1.0, None, 5.0, float("nan")], "b": ["x", None, "y", "x"]})
    encoding = Encoding.of(table, 5, "fill")
    np.testing.assert_array_equal(encoding.apply(table), [[1, 1, 0], [3, 0, 0], [5, 0, 1], [3, 1, 0]])
    array = np.array([[1.0, np.nan], [3.0, 4.0]])
    np.testing.assert_array_equal(Encoding.of_array(array, "fill").apply_array(array), [[1, 4], [3, 4]])


def test_an_unknown_choice_for_missing_values_is_refused():
    with pytest.raises(SettingError, match="missing must be one of error, drop, fill, got 'guess'"):
        Encoding.of(pa.table(VALUES), 5, "guess")


@pytest.mark.parametrize("missing", ["error", "fill"])
def test_infinite_values_are_refused_by_name(missing):
    table = pa.table({"a": [1.0, float("inf")], "b": [1.0, 2.0]})
    with pytest.raises(DataError, match=r"infinite in column 'a' \(1\)"):
        Encoding.of(table, 5, missing).apply(table)
    with pytest.raises(DataError, match=r"infinite in column 'x1' \(1\)"):
        Encoding.of_array(np.zeros((1, 2)), missing).apply_array(np.array([[0.0, -np.inf]]))


def test_a_value_that_was_not_there_in_training_is_said_and_is_none_of_the_known():
    encoding = Encoding.of(pa.table(VALUES), 5, "error")
    with pytest.warns(DataWarning, match=r"'city' has 2 values that were not there in training \('q', 'r'\)"):
        x = encoding.apply(pa.table({**VALUES, "city": ["q", "a", "r"]}))
    np.testing.assert_array_equal(x[:, 1:3], [[0, 0], [1, 0], [0, 0]])


def test_a_column_that_changes_its_type_is_refused_by_name():
    encoding = Encoding.of(pa.table(VALUES), 5, "error")
    with pytest.raises(DataError, match="'size' must be numbers, as in training, and is text"):
        encoding.apply(pa.table({**VALUES, "size": ["1", "2", "3"]}))
    with pytest.raises(DataError, match="'city' must be text, as in training, and is of type int64"):
        encoding.apply(pa.table({**VALUES, "city": [1, 2, 3]}))
    with pytest.raises(DataError, match="trained with text columns"):
        encoding.apply_array(np.zeros((1, 3)))


def test_rows_with_missing_values_are_found():
    np.testing.assert_array_equal(
        is_complete(pa.table({"a": [1.0, None, float("nan")], "b": ["x", "y", "z"]})), [1, 0, 0]
    )
    np.testing.assert_array_equal(is_complete(np.array([[1.0, np.nan], [1.0, 2.0]])), [0, 1])
    np.testing.assert_array_equal(is_missing(np.array(["a", None, float("nan"), pd.NA], dtype=object)), [0, 1, 1, 1])
    np.testing.assert_array_equal(is_missing(np.array(["a", "b"])), [0, 0])


def test_columns_of_every_kind_become_vectors_and_know_their_names():
    for column in (pd.Series([1, 2], name="t"), pl.Series("t", [1, 2]), pa.table({"t": [1, 2]})):
        np.testing.assert_array_equal(as_vector(column), [1, 2])
        assert name_of(column) == "t"
    np.testing.assert_array_equal(as_vector(pa.array(["a", "b"]).dictionary_encode()), ["a", "b"])
    np.testing.assert_array_equal(as_vector(pa.chunked_array([[1.0], [2.0]])), [1.0, 2.0])
    assert name_of(np.zeros(2)) is None
    assert name_of(pd.Series([1, 2])) is None
