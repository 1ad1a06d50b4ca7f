"""Data sets from their public sources, on small files of the same kinds in the place of these."""

import bz2
import gzip
import http.client
import io
import zipfile
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from swsgp import load_set
from swsgp.data import sets, sources
from swsgp.errors import DataError, DataFolderError


def archive(**files):
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as zipped:
        for name, content in files.items():
            zipped.writestr(name.replace("__", "."), content)
    return whole.getvalue()


def fetched(monkeypatch, folder, name, size, *parts):
    """What `fetch` makes of these bytes, for a source of another size."""
    small = replace(sources.SOURCES[name], n_rows=size[0], n_inputs=size[1], means=None)
    monkeypatch.setitem(sources.SOURCES, name, small)
    answers = dict(zip(small.urls, parts, strict=True))
    return pq.read_table(sources.fetch(name, folder, answers.__getitem__))


def test_comma_separated_values_with_the_target_first(monkeypatch, tmp_path):
    zipped = archive(CASP__csv="RMSD,F1,F2\n1.5,2,3\n4.5,5,6\n")
    table = fetched(monkeypatch, tmp_path, "protein", (2, 2), zipped)
    assert table.to_pydict() == {"F1": [2.0, 5.0], "F2": [3.0, 6.0], "target": [1.5, 4.5]}


def test_values_without_names(monkeypatch, tmp_path):
    table = fetched(monkeypatch, tmp_path, "spam", (2, 2), archive(spambase__data="0,0.5,1\n1,2,0\n"))
    assert table.to_pydict() == {"x0": [0.0, 1.0], "x1": [0.5, 2.0], "target": [1.0, 0.0]}


def test_attribute_relation_files(monkeypatch, tmp_path):
    text = "@RELATION EEG\n@ATTRIBUTE AF3 NUMERIC\n@ATTRIBUTE eye {0,1}\n@DATA\n4329.2,0\n4324.6,1\n"
    table = fetched(monkeypatch, tmp_path, "eeg", (2, 1), archive(**{"EEG Eye State.arff": text}))
    assert table.to_pydict() == {"x0": [4329.2, 4324.6], "target": [0.0, 1.0]}


def test_spreadsheets(monkeypatch, tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("openpyxl")
    sheet = io.BytesIO()
    pd.DataFrame({"AT": [8.3, 23.6], "PE": [480.5, 445.75]}).to_excel(sheet, index=False)
    table = fetched(monkeypatch, tmp_path, "powerplant", (2, 1), archive(Folds5x2_pp__xlsx=sheet.getvalue()))
    assert table.to_pydict() == {"AT": [8.3, 23.6], "target": [480.5, 445.75]}


def test_images(monkeypatch, tmp_path):
    def packed(array, n_header):
        return gzip.compress(bytes(n_header) + array.astype(np.uint8).tobytes())

    train, test = np.full((2, 784), 7), np.full((1, 784), 9)
    parts = (packed(train, 16), packed(np.array([3, 4]), 8), packed(test, 16), packed(np.array([5]), 8))
    table = fetched(monkeypatch, tmp_path, "mnist", (3, 784), *parts)
    assert table["target"].to_pylist() == [3, 4, 5]
    assert table["split"].to_pylist() == ["train", "train", "test"]
    assert table["p783"].to_pylist() == [7, 7, 9]


def test_waves_of_four_coasts_and_queries_in_an_archive_within_the_archive(monkeypatch, tmp_path):
    files = {f"WECs_DataSet/{c}_Data.csv": "1,2,3\n" for c in ("Adelaide", "Perth", "Sydney", "Tasmania")}
    table = fetched(monkeypatch, tmp_path, "wave", (4, 2), archive(**files))
    assert table["target"].to_pylist() == [3.0] * 4
    text = ",x,y,x_range,y_range,count,sum_,avg\n0,1,2,3,4,5,6,7\n"
    inner = archive(**{"Range-Queries-Aggregates.csv": text})
    table = fetched(monkeypatch, tmp_path, "query", (1, 4), archive(**{"Datasets.zip": inner}))
    assert table.to_pydict() == {"x": [1.0], "y": [2.0], "x_range": [3.0], "y_range": [4.0], "target": [5.0]}


def test_flights_that_landed_in_aircraft_of_known_age(monkeypatch, tmp_path):
    names = "Year,Month,DayofMonth,DayOfWeek,DepTime,ArrTime,TailNum,AirTime,ArrDelay,Distance,Cancelled,Diverted"
    flights = [
        "2008,1,3,4,2003,2211,N1,116,-14,810,0,0",
        "2008,2,4,5,754,30,N2,113,2,515,0,0",
        "2008,2,4,5,754,1002,N3,113,2,515,0,0",
        "2008,2,4,5,754,1002,N4,113,2,515,0,0",
        "2008,2,4,5,754,1002,,113,2,515,0,0",
        "2008,2,4,5,754,1002,N1,NA,NA,515,0,1",
        "2008,2,4,5,NA,NA,N1,NA,NA,515,1,0",
        "2008,2,4,5,754,1002,N1,NA,2,515,0,0",
    ]
    packed = bz2.compress("\n".join([names, *flights, ""]).encode())
    aircraft = b"tailnum,type,year\nN1,Corporation,1998\nN2,,2008\nN3,,None\nN4,,0000\nN5,,\n"
    table = fetched(monkeypatch, tmp_path, "airline", (2, 8), packed, aircraft)
    assert table.to_pydict() == {
        "month": [1.0, 2.0],
        "day_of_month": [3.0, 4.0],
        "day_of_week": [4.0, 5.0],
        "plane_age": [10.0, 0.0],
        "air_time": [116.0, 113.0],
        "distance": [810.0, 515.0],
        "arr_time": [1331.0, 30.0],
        "dep_time": [1203.0, 474.0],
        "target": [0.0, 1.0],
    }


def test_what_is_not_the_data_set_is_refused_and_leaves_nothing_behind(monkeypatch, tmp_path):
    with pytest.raises(DataError, match="protein: it has 2 rows and 2 inputs, where it should have 45730 and 9"):
        sources.fetch("protein", tmp_path, lambda _: archive(CASP__csv="RMSD,F1,F2\n1.5,2,3\n4.5,5,6\n"))
    few = replace(sources.SOURCES["protein"], n_rows=2, n_inputs=2)
    monkeypatch.setitem(sources.SOURCES, "protein", few)
    with pytest.raises(DataError, match=r"means of 4 and 3, where it should have 153948 and 7\.7"):
        sources.fetch("protein", tmp_path, lambda _: archive(CASP__csv="RMSD,F1,F2\n1.5,2,3\n4.5,5,6\n"))
    with pytest.raises(DataError, match="is not the data set protein"):
        sources.fetch("protein", tmp_path, lambda _: b"<html>moved</html>")
    with pytest.raises(DataError, match=r"no file in it ends in CASP\.csv"):
        sources.fetch("protein", tmp_path, lambda _: archive(other="1"))

    with pytest.raises(DataError, match=r"not the data set mnist \(EOFError: .*end"):
        sources.fetch("mnist", tmp_path, lambda _: gzip.compress(bytes(5000))[:20])
    with pytest.raises(DataError, match=r"not the data set kin8nm \(StopIteration"):
        sources.fetch("kin8nm", tmp_path, lambda _: b"moved")

    def broken(trouble):
        def read(_):
            raise trouble

        return read

    with pytest.raises(DataFolderError, match=r"could not be fetched from https.*no route to host.*set SWSGP_DATA"):
        sources.fetch("protein", tmp_path, broken(OSError("no route to host")))
    with pytest.raises(DataFolderError, match=r"could not be fetched from https.*IncompleteRead"):
        sources.fetch("protein", tmp_path, broken(http.client.IncompleteRead(b"")))
    with pytest.raises(DataFolderError, match="no public source for 'moon'"):
        sources.fetch("moon", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_cache_is_filled_once(monkeypatch, tmp_path):
    monkeypatch.delenv("SWSGP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    small = replace(sources.SOURCES["spam"], n_rows=2, n_inputs=2, means=(0.875, 0.5))
    monkeypatch.setitem(sources.SOURCES, "spam", small)
    asked = []

    def read(url):
        asked.append(url)
        return archive(spambase__data="0,0.5,1\n1,2,0\n")

    monkeypatch.setattr(sources, "_read", read)
    assert load_set("spam").x.shape == (2, 2)
    np.testing.assert_array_equal(load_set("spam").y, [1, 0])
    assert len(asked) == 1
    # A bit that turns in the cache is noticed.
    path = tmp_path / "swsgp" / "spam.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:60] + bytes([whole[60] ^ 1]) + whole[61:])
    with pytest.raises(DataError, match=r"spam\.parquet is not a whole Parquet file"):
        load_set("spam")
    # A folder that the user has named is not written to.
    monkeypatch.setenv("SWSGP_DATA", str(tmp_path / "own"))
    with pytest.raises(DataFolderError, match=r"no spam\.parquet"):
        load_set("spam")
    assert sets.data_folder() == tmp_path / "own"
