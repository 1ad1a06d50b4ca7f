"""Tables larger than the memory set for them, and what goes wrong on the way, done for real."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swsgp import SWSGPRegressor, load
from swsgp.errors import DataError
from swsgp.estimators import from_files
from swsgp.fit.checkpoints import Checkpoints

PROGRAM = [str(Path(sys.executable).with_name("swsgp"))]
STEPS = [
    "--preset",
    "paper",
    "--covariance",
    "diag",
    "--no-learn-inducing",
    "--n-inducing",
    "500",
    "--batch-size",
    "256",
]


def write(path, n, seed=0):
    """In row groups of 20,000, so that they can be read a few at a time."""
    with pq.ParquetWriter(path, pa.schema([(f"x{j}", pa.float64()) for j in range(8)] + [("y", pa.float64())])) as file:
        for start in range(0, n, 20_000):
            rng = np.random.default_rng((seed, start))
            x = rng.normal(size=(min(20_000, n - start), 8))
            y = np.sin(2 * x[:, 0]) + x[:, 1] + 0.1 * rng.normal(size=len(x))
            file.write_table(pa.table({**{f"x{j}": x[:, j] for j in range(8)}, "y": y}))


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    write(folder / "small.parquet", 20_000)
    write(folder / "large.parquet", 3_500_000)
    write(folder / "test.parquet", 2_000, seed=1)
    return folder


def run(*arguments, **options):
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False, **options
    )


MEASURE = """
import json, resource, sys
from swsgp import SWSGPRegressor
options = dict(preset="paper", covariance="diag", learn_inducing=False, n_inducing=1000, n_neighbors=16)
options |= dict(batch_size=256, learning_rate=0.01)
peaks = []
for name, steps in (("small", 100), ("large", 3000)):
    model = SWSGPRegressor(max_steps=steps, **options)
    model.fit_file(f"{sys.argv[1]}/{name}.parquet", "y", max_memory=sys.argv[2])
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
model.save(sys.argv[3])
print(json.dumps(peaks))
"""


def test_the_memory_that_was_set_is_held_on_a_table_several_times_larger(tables, tmp_path):
    """The first fit, on a table that fits, brings in the program itself."""
    limit, size = 80_000_000, 3_500_000 * 9 * 8
    assert size > 3 * limit
    command = [sys.executable, "-c", MEASURE, str(tables), str(limit), str(tmp_path / "m.swsgp")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    before, after = json.loads(done.stdout)
    assert after - before < limit
    scores = run("evaluate", tmp_path / "m.swsgp", tables / "test.parquet", "--json")
    assert json.loads(scores.stdout)["swsgp"]["rmse"] < 0.45


def test_a_run_that_was_killed_goes_on_to_the_same_model(tables, tmp_path):
    options = [tables / "small.parquet", "--target", "y", "--max-memory", "8MB", *STEPS, "--max-steps", "4000"]
    options += ["--learning-rate", "0.01", "--quiet"]
    out = tmp_path / "m.swsgp"
    checkpoint = tmp_path / "m.swsgp.checkpoint"
    often = "from swsgp.fit import checkpoints; checkpoints._EVERY = 0.5; from swsgp.cli import main; main()"
    running = subprocess.Popen([sys.executable, "-c", often, "fit", *map(str, options), "--out", out])
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert checkpoint.exists()
    left = list(tmp_path.glob("swsgp-*"))
    assert len(left) == 1
    assert not out.exists()
    resumed = run("fit", *options, "--out", out, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert list(tmp_path.glob("swsgp-*")) == left
    assert not checkpoint.exists()
    unbroken = tmp_path / "other.swsgp"
    assert run("fit", *options, "--out", unbroken).returncode == 0
    one, other = (load(path).fitted_.model.variational.mean for path in (out, unbroken))
    np.testing.assert_array_equal(one, other)


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "rows"
    place.mkdir()
    for name in ("a", "b"):
        write(place / f"{name}.parquet", 20_000)
    return place


def test_a_file_that_is_damaged_is_named_and_nothing_is_left(folder, tmp_path):
    bad = folder / "b.parquet"
    content = bytearray(bad.read_bytes())
    # The middle is lost; the end, which says what is where, is whole.
    content[1000:200_000] = bytes(199_000)
    bad.write_bytes(content)
    done = run("fit", folder, "--target", "y", "--max-memory", "2MB", *STEPS, "--out", tmp_path / "m.swsgp", "--quiet")
    assert done.returncode == 1
    assert "b.parquet" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows"]


def test_a_table_that_is_damaged_when_a_run_goes_on_leaves_its_checkpoint_as_it_is(folder, tmp_path):
    out, checkpoint, bad = tmp_path / "m.swsgp", tmp_path / "m.swsgp.checkpoint", folder / "b.parquet"
    model = SWSGPRegressor(n_inducing=50, n_neighbors=8, max_steps=100)
    model.fit_file(folder, "y", max_memory="2MB", checkpoint=checkpoint)
    before = checkpoint.read_bytes()
    bad.write_bytes(bad.read_bytes()[:-1000])
    options = ["--max-memory", "2MB", "--n-inducing", "50", "--n-neighbors", "8", "--max-steps", "100", "--quiet"]
    done = run("fit", folder, "--target", "y", *options, "--out", out, "--resume")
    assert done.returncode == 1
    assert "b.parquet" in done.stderr
    assert checkpoint.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [checkpoint.name, "rows"]


@pytest.mark.parametrize("damage", ["cut off", "places of text"])
def test_a_damaged_arrow_file_is_an_error_and_not_the_end_of_the_program(tmp_path, damage):
    file = tmp_path / "t.arrow"
    rng = np.random.default_rng(0)
    rows = pa.table(
        {"x": rng.normal(size=50_000), "kind": rng.choice(["a", "b"], 50_000), "y": rng.normal(size=50_000)}
    )
    with pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    content = bytearray(file.read_bytes())
    if damage == "cut off":
        content = content[: len(content) // 2]
    else:
        # After the numbers of x; eight bytes of any number say where the text of a row ends.
        start = 50_000 * 8 + 2_000
        content[start : start + 100_000] = b"\xf0" * 100_000
    file.write_bytes(content)
    for memory in ([], ["--max-memory", "2MB"]):
        done = run("fit", file, "--target", "y", *memory, "--out", tmp_path / "m.swsgp", "--quiet")
        assert done.returncode == 1
        assert "t.arrow cannot be read" in done.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["t.arrow"]


IN_PARTS = """
import json, resource, sys
from swsgp import load
from swsgp.data.table_files import write_batches
from swsgp.streams import labelled, predictions
from pathlib import Path
model = load(sys.argv[1])
peaks = []
for table in sys.argv[2:4]:
    scores = model.score_parts(labelled(table, model, "y", "20MB"))
    write_batches(Path(sys.argv[4]), predictions(table, model, ["x0"], 0.95, "20MB"))
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
print(json.dumps([peaks, scores["swsgp"]["rmse"]]))
"""


def test_predictions_and_scores_of_a_long_table_take_no_more_memory_than_those_of_a_short_one(tables, tmp_path):
    write(tmp_path / "long.parquet", 400_000)
    model = SWSGPRegressor(n_inducing=200, n_neighbors=8, n_landmarks=0, max_steps=50, kernel="matern52")
    rows = pq.read_table(tables / "test.parquet")
    model.fit(rows.drop_columns(["y"]), rows.select(["y"])).save(tmp_path / "m.swsgp")
    files = [tmp_path / "m.swsgp", tables / "small.parquet", tmp_path / "long.parquet", tmp_path / "p.parquet"]
    command = [sys.executable, "-c", IN_PARTS, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    (short, long), rmse = json.loads(done.stdout)
    # All of its scores and predictions would take 60 MB.
    assert long - short < 20_000_000
    assert 0 < rmse < 1
    assert pq.read_metadata(tmp_path / "p.parquet").num_rows == 400_000


def test_a_file_that_disappears_between_two_passes_is_noticed(folder, tmp_path, monkeypatch):
    stored = from_files._stored

    def after_it_is_gone(*arguments):
        (folder / "b.parquet").unlink()
        return stored(*arguments)

    monkeypatch.setattr(from_files, "_stored", after_it_is_gone)
    model, work = SWSGPRegressor(n_inducing=50, max_steps=20), tmp_path / "work"
    with pytest.raises(DataError, match=r"b\.parquet cannot be read: .*No such file"):
        model.fit_file(folder, "y", workspace=work)
    assert list(work.iterdir()) == []
    assert not hasattr(model, "fitted_")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a file system is not allowed here")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_disk_that_fills_leaves_the_checkpoint_before(small_disk):
    file = small_disk / "run.checkpoint"
    checkpoints = Checkpoints(file, "a run")
    checkpoints.save({"step": 1, "state": np.zeros(10_000)}, [])
    before = file.read_bytes()
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save({"step": 2, "state": np.zeros(200_000)}, [])
    assert file.read_bytes() == before
    assert [path.name for path in small_disk.iterdir()] == ["run.checkpoint"]
    state, _ = Checkpoints(file, "a run").load({"step": 0, "state": np.zeros(10_000)})
    assert state["step"] == 1
