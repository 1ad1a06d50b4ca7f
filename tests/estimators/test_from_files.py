"""Training on files that are read in parts, beside training on the same table in memory."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swsgp import SWSGPClassifier, SWSGPRegressor
from swsgp.data import overview
from swsgp.data.overview import look, n_bytes_of
from swsgp.errors import DataError, SettingError


def table(n=3000, seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, n))
    town = np.array(["north", "south", "west"])[rng.integers(0, 3, n)]
    y = np.sin(2 * a) + 0.5 * b + (town == "west") + 0.1 * rng.normal(size=n)
    return pa.table({"a": a, "town": town, "b": 100 * b + 7, "y": y, "late": np.where(y > 0.3, "yes", "no")})


@pytest.fixture
def folder(tmp_path):
    rows, place = table(), tmp_path / "rows"
    place.mkdir()
    for i in range(3):
        pq.write_table(rows.slice(1000 * i, 1000), place / f"{i}.parquet", row_group_size=300)
    return place


TEST = table(500, seed=1)
INPUTS = ["a", "town", "b"]


@pytest.fixture
def small_parts(monkeypatch):
    """Rows weigh more, so that a megabyte is the memory for some of these tables."""
    monkeypatch.setattr(overview, "BYTES_READ", 50)
    monkeypatch.setattr("swsgp.estimators.from_files.rows_for", lambda n_bytes, _: 700)


@pytest.mark.parametrize("preset", ["solved", "steps"])
@pytest.mark.parametrize("kind", [SWSGPRegressor, SWSGPClassifier])
def test_scores_are_those_of_training_in_memory(folder, small_parts, kind, preset):
    target = "y" if kind is SWSGPRegressor else "late"
    options = {"n_inducing": 400, "n_neighbors": 16, "n_landmarks": 0, "max_steps": 200}
    if preset == "steps":
        options |= {"covariance": "diag", "preset": "paper", "learn_inducing": False, "batch_size": 64}
        options |= {"max_steps": 4000, "learning_rate": 0.005, "early_stopping": True}
    whole = table()
    in_memory = kind(**options).fit(whole.select(INPUTS), whole.select([target]))
    in_parts = kind(**options).fit_file(folder, target, INPUTS, max_memory="1MB")
    scores = [model.log_score(TEST.select(INPUTS), TEST.select([target])) for model in (in_memory, in_parts)]
    assert abs(scores[0] - scores[1]) < 0.06
    assert in_parts.fitted_.record["rows"] == 3000
    assert in_parts.fitted_.rows is None
    assert list(in_parts.feature_names_in_) == INPUTS


def test_a_pass_finds_every_value_and_a_fair_sample(folder, monkeypatch):
    monkeypatch.setattr(overview, "BYTES_READ", 200)
    found = look(folder, INPUTS, "late", "error", 1_000_000, 20, 0)
    assert found.n_rows == 3000
    assert sorted(found.categories["town"].to_pylist()) == ["north", "south", "west"]
    assert sorted(found.labels.to_pylist()) == ["no", "yes"]
    assert 80 < len(found.sample) < 200
    whole = table()
    np.testing.assert_array_equal(found.sample["a"].to_numpy(), whole["a"].to_numpy()[found.places])
    assert len(set(found.places)) == len(found.places)
    assert abs(np.mean(found.places) - 1500) < 300
    again = look(folder, INPUTS, "late", "error", 1_000_000, 20, 0)
    np.testing.assert_array_equal(found.places, again.places)
    assert look(folder, INPUTS, "y", "error", 1_000_000, 20, 0).labels is None


def test_a_rare_text_that_the_sample_lacks_is_known(tmp_path, small_parts):
    rows = table()
    town = rows["town"].to_pylist()
    town[1234] = "island"
    rows = rows.set_column(1, "town", pa.array(town))
    pq.write_table(rows, tmp_path / "t.parquet")
    model = SWSGPRegressor(n_inducing=50, max_steps=20).fit_file(tmp_path / "t.parquet", "y", INPUTS, "1MB")
    assert model.fitted_.encoding.categories[1] == ("island", "north", "south", "west")


def test_missing_values_are_counted_in_the_whole_table_or_left_out(tmp_path, small_parts):
    rows = table()
    a = rows["a"].to_pylist()
    a[5] = a[2500] = None
    pq.write_table(rows.set_column(0, "a", pa.array(a)), tmp_path / "t.parquet")
    options = {"n_inducing": 50, "max_steps": 20}
    with pytest.raises(DataError, match=r"'a' \(2\)"):
        SWSGPRegressor(**options).fit_file(tmp_path / "t.parquet", "y", INPUTS)
    dropped = SWSGPRegressor(**options, missing="drop").fit_file(tmp_path / "t.parquet", "y", INPUTS, "1MB")
    assert dropped.fitted_.record["rows"] == 2998
    filled = SWSGPRegressor(**options, missing="fill").fit_file(tmp_path / "t.parquet", "y", INPUTS, "1MB")
    assert filled.fitted_.record["rows"] == 3000


def test_rows_in_the_workspace_are_gone_afterwards_and_files_of_others_stay(folder, tmp_path):
    model, work = SWSGPRegressor(n_inducing=50, max_steps=20), tmp_path / "work"
    work.mkdir()
    (work / "thesis.txt").write_text("do not lose")
    model.fit_file(folder, "y", INPUTS, workspace=work)
    assert [path.name for path in work.iterdir()] == ["thesis.txt"]


def test_files_whose_types_differ_are_one_table(folder, small_parts):
    """Whole numbers in one file, and text as categories in another, as writers make them file by file."""
    rows = table(1000, seed=2)
    rows = rows.set_column(2, "b", rows["b"].cast(pa.int64(), safe=False)).set_column(
        1, "town", rows["town"].dictionary_encode()
    )
    pq.write_table(rows, folder / "3.parquet")
    model = SWSGPRegressor(n_inducing=50, max_steps=20).fit_file(folder, "y", INPUTS, "1MB")
    assert model.fitted_.record["rows"] == 4000
    pq.write_table(rows.set_column(0, "a", pa.array(["x"] * 1000)), folder / "4.parquet")
    with pytest.raises(DataError, match="different types"):
        model.fit_file(folder, "y", INPUTS, "1MB")


def test_memory_too_small_for_a_batch_is_said(folder):
    with pytest.raises(SettingError, match="too few for batches of 2,000"):
        SWSGPRegressor(n_inducing=50, batch_size=2000).fit_file(folder, "y", INPUTS, "1MB")


def test_mistakes_are_said(folder, tmp_path, monkeypatch):
    model = SWSGPRegressor(n_inducing=50, max_steps=20)
    with pytest.raises(SettingError, match="size such as 500MB"):
        model.fit_file(folder, "y", INPUTS, max_memory="much")
    with pytest.raises(DataError, match="no column 'z'"):
        model.fit_file(folder, "z", INPUTS)
    with pytest.raises(SettingError, match="in memory; use fit"):
        SWSGPRegressor(model="full-gp").fit_file(folder, "y", INPUTS)
    with pytest.raises(SettingError, match="n_landmarks"):
        SWSGPRegressor(n_landmarks=8).fit_file(folder, "y", INPUTS)
    with pytest.raises(DataError, match="max_categories=2"):
        SWSGPRegressor(max_categories=2).fit_file(folder, "y", INPUTS)
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "t.csv").write_text("a,y\n1,2\n")
    with pytest.raises(DataError, match="CSV"):
        model.fit_file(tmp_path / "csv", "y")
    with pytest.raises(SettingError, match="there are 3,000; lower"):
        SWSGPRegressor(n_inducing=4000).fit_file(folder, "y", INPUTS, max_memory="1MB")
    monkeypatch.setattr("swsgp.estimators.from_files.shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(SettingError, match="workspace"):
        model.fit_file(folder, "y", INPUTS)


def test_sizes_are_read_as_people_write_them():
    assert [n_bytes_of(size) for size in ("500MB", "2 GB", "1.5g", 3_000_000)] == [5e8, 2e9, 1.5e9, 3e6]
