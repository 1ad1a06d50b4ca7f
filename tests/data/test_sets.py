import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swsgp import load_set
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
