"""Tables on disk, whole and in parts."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from swsgp.data.table_files import batches, column_names, read_table, typed, write_batches
from swsgp.errors import DataError

TABLE = pa.table({"a": [1.0, 2.0, 3.0], "b": ["x", "y", "x"], "c": [1, 2, 3]})
WRITERS = {
    "t.csv": pa.csv.write_csv,
    "t.parquet": pq.write_table,
    "t.feather": pa.feather.write_feather,
    "t.arrow": pa.feather.write_feather,
}


@pytest.mark.parametrize("name", WRITERS)
def test_files_of_every_format_are_read_whole_and_in_parts(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](TABLE, str(path))
    assert column_names(path) == ["a", "b", "c"]
    assert read_table(path, ["c", "a"]).to_pydict() == TABLE.select(["c", "a"]).to_pydict()
    types = {"b": pa.string(), "a": pa.float64()}
    parts = [typed(part, types) for part in batches(path, list(types))]
    assert pa.concat_tables(parts).to_pydict() == TABLE.select(["b", "a"]).to_pydict()


@pytest.mark.parametrize("name", WRITERS)
def test_files_of_every_format_are_written_part_by_part(tmp_path, name):
    path = tmp_path / name
    assert write_batches(path, iter([TABLE, TABLE])) == 6
    assert read_table(path, TABLE.column_names).to_pydict() == pa.concat_tables([TABLE, TABLE]).to_pydict()
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_long_files_come_in_parts_of_bounded_size(tmp_path):
    long = pa.table({"a": list(range(95))})
    for name in ("t.parquet", "t.feather"):
        WRITERS[name](long, str(tmp_path / name))
        parts = list(batches(tmp_path / name, ["a"], 10))
        assert max(len(part) for part in parts) == 10
        assert pa.concat_tables(parts).to_pydict() == long.to_pydict()


def test_the_type_of_a_csv_column_is_that_of_all_its_values(tmp_path):
    path = tmp_path / "t.csv"
    late = 200_000
    rows = [f"{i if i < late else i + 0.5},{i if i < late else 'x'},{i}" for i in range(late + 2)]
    path.write_text("a,b,c\n" + "\n".join(rows) + "\n")
    table = read_table(path, ["c", "b", "a"])
    assert [str(field.type) for field in table.schema] == ["int64", "string", "double"]
    assert table["a"][-1].as_py() == late + 1.5
    assert table["b"][0].as_py() == "0"


def test_missing_text_and_numbers_of_a_csv_file_are_missing(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,x\n,\n3,z\n")
    assert read_table(path, ["a", "b"]).to_pydict() == {"a": [1, None, 3], "b": ["x", None, "z"]}


def test_parts_of_a_csv_file_are_text_until_their_types_are_said(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,flag,n,label\n00017,true,1,1\n00018,False, 2.5 ,2\n00019,,,\n", encoding="utf-8")
    (part,) = batches(path, ["id", "flag", "n", "label"])
    assert part["id"].to_pylist() == ["00017", "00018", "00019"]
    found = typed(part, {"flag": pa.float64(), "n": pa.float64(), "label": pa.string()})
    assert found.to_pydict() == {"flag": [1.0, 0.0, None], "n": [1.0, 2.5, None], "label": ["1", "2", None]}
    assert typed(part, {"flag": pa.bool_(), "label": pa.int64()}).to_pydict() == {
        "flag": [True, False, None],
        "label": [1, 2, None],
    }
    with pytest.raises(DataError, match="column 'x' must be numbers, as in training, and has text such as 'big'"):
        typed(pa.table({"x": ["1", "big"]}), {"x": pa.float64()})


def test_a_file_that_is_not_utf_8_is_named(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("größe,b\n1,2\n".encode("latin-1"))
    with pytest.raises(DataError, match="not text in UTF-8"):
        column_names(path)


@pytest.mark.parametrize("name", ["t.parquet", "t.feather"])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, name):
    WRITERS[name](TABLE, str(tmp_path / name))
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=f"{name} cannot be read"):
        read_table(tmp_path / name, ["a"])


def test_a_format_that_is_not_known_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"must end in one of \.csv, \.parquet"):
        column_names(Path("t.xlsx"))


def test_a_failure_on_the_way_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "t.parquet"
    path.write_bytes(b"old")

    def broken():
        yield TABLE
        raise DataError("the second part is bad")

    with pytest.raises(DataError, match="second part"):
        write_batches(path, broken())
    with pytest.raises(DataError, match="no rows"):
        write_batches(path, iter([]))
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["t.parquet"]


@pytest.mark.parametrize("address", [str, lambda path: f"file://{path}"])
def test_a_folder_of_files_is_one_table_in_the_order_of_names(tmp_path, address):
    """An address goes by way of Arrow's file systems, as one in an object store does."""
    (tmp_path / "rows").mkdir()
    for i in (2, 0, 1):
        pq.write_table(
            pa.table({"a": [3 * i, 3 * i + 1, 3 * i + 2], "b": ["x"] * 3}), tmp_path / "rows" / f"{i}.parquet"
        )
    place = address(tmp_path / "rows")
    assert column_names(place) == ["a", "b"]
    assert read_table(place, ["a"])["a"].to_pylist() == list(range(9))
    assert [part["a"].to_pylist() for part in batches(place, ["a"], 2)][:2] == [[0, 1], [2]]


def test_folders_and_files_that_are_no_table_are_named(tmp_path):
    with pytest.raises(DataError, match=r"there is no .*nothing"):
        read_table(tmp_path / "nothing.parquet", ["a"])
    with pytest.raises(DataError, match="no file that ends in"):
        column_names(tmp_path)
    pq.write_table(TABLE, tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("a\n1\n")
    with pytest.raises(DataError, match="several kinds"):
        column_names(tmp_path)
    (tmp_path / "b.csv").unlink()
    pq.write_table(TABLE.rename_columns(["z", *TABLE.column_names[1:]]), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet"):
        list(batches(tmp_path, TABLE.column_names))
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    with pytest.raises(DataError, match=r"b\.parquet"):
        list(batches(tmp_path, TABLE.column_names))
