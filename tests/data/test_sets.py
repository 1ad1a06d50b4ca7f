import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swsgp import load_set
from swsgp.data.sets import set_or_stand_in, what_stands_in
from swsgp.data.sources import SOURCES
from swsgp.errors import DataError, DataFolderError


def test_a_set_is_read_with_its_column_names(data_folder):
    data = load_set("kin8nm")
    assert data.x.shape == (8192, 8)
    assert len(data.columns) == 8
    assert "target" not in data.columns
    np.testing.assert_allclose(data.y.mean(), 0.7143, atol=1e-3)


def test_a_set_that_is_not_there_is_named_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("SWSGP_DATA", str(tmp_path))
    with pytest.raises(DataFolderError, match=r"no moon\.parquet in .*set SWSGP_DATA"):
        load_set("moon")


def test_without_a_folder_named_the_cache_is_looked_in(tmp_path, monkeypatch):
    monkeypatch.delenv("SWSGP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataFolderError, match="swsgp"):
        load_set("moon")


def test_a_file_that_is_no_table_or_has_no_target_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SWSGP_DATA", str(tmp_path))
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not really")
    pq.write_table(pa.table({"a": [1.0]}), tmp_path / "blind.parquet")
    with pytest.raises(DataError, match=r"broken\.parquet is not a whole Parquet file"):
        load_set("broken")
    with pytest.raises(DataError, match=r"must have a column 'target', got a"):
        load_set("blind")


def test_a_stand_in_is_taken_where_the_set_itself_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("SWSGP_DATA", str(tmp_path))
    assert set_or_stand_in("query") == "query"
    table = pa.table({"a": [1.0], "target": [2.0]})
    pq.write_table(table, tmp_path / "query_standin.parquet")
    assert set_or_stand_in("query") == "query_standin"
    assert what_stands_in("query_standin") == "range queries over taxi pick-ups for those over crimes"
    pq.write_table(table, tmp_path / "query.parquet")
    assert set_or_stand_in("query") == "query"
    assert set_or_stand_in("protein") == "protein"


def test_flights_stand_for_those_of_2008_unless_there_are_as_many(tmp_path, monkeypatch):
    monkeypatch.setenv("SWSGP_DATA", str(tmp_path))
    path = tmp_path / "airline.parquet"
    pq.write_table(pa.table({"target": [1.0]}), path)
    assert what_stands_in("airline").startswith("2.5 million flights")
    zeros = pa.array(np.zeros(5_900_000, np.int8))
    pq.write_table(pa.table({**{f"x{i}": zeros for i in range(8)}, "target": zeros}), path)
    assert what_stands_in("airline") is None
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match=r"airline\.parquet is not a whole Parquet file"):
        what_stands_in("airline")


def test_a_file_that_is_not_the_papers_set_is_known_as_another(tmp_path, monkeypatch):
    monkeypatch.setenv("SWSGP_DATA", str(tmp_path))
    path = tmp_path / "kin8nm.parquet"
    pq.write_table(pa.table({"a": [1.0, 2.0], "target": [2.0, 3.0]}), path)
    assert what_stands_in("kin8nm") == "a file with 2 rows and 1 inputs, where it should have 8192 and 8"
    columns = {f"x{i}": ["text"] * 8192 for i in range(8)}
    pq.write_table(pa.table({**columns, "target": np.zeros(8192)}), path)
    assert what_stands_in("kin8nm") == "a file with a column 'x0' of string, where it should have numbers"


@pytest.mark.parametrize("name", ["powerplant", "kin8nm", "protein", "eeg", "credit", "spam", "mnist"])
def test_the_sets_at_hand_are_known_by_their_sizes_and_means(data_folder, name):
    table = pq.read_table(data_folder / f"{name}.parquet")
    assert SOURCES[name].trouble_with(table) is None
    assert what_stands_in(name) is None
    assert "rows" in SOURCES[name].trouble_with(table[1:])
    turned = table.set_column(len(table.column_names) - 1, "target", pa.array(table["target"].to_numpy() * 1.01))
    assert "means" in SOURCES[name].trouble_with(turned)
