"""Several processes on one machine that train one model, and processes that die, hang or are called wrongly."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from swsgp import load, watching
from swsgp.cli import app
from swsgp.serialization import read_header

STEPS = [
    *("--preset", "paper", "--covariance", "diag", "--no-learn-inducing", "--n-inducing", "100", "--n-neighbors", "8"),
    *("--max-steps", "800", "--learning-rate", "0.01", "--precision", "float64"),
]
# A test has one core, which two processes or devices would fight for.
ON_ALL_CORES = "import os; hasattr(os, 'sched_setaffinity') and os.sched_setaffinity(0, range(os.cpu_count()))\n"
# Faults are noticed sooner, and checkpoints written more often, than is good for users.
QUICK = f"""{ON_ALL_CORES}
from swsgp import processes, watching
from swsgp.cli import main
from swsgp.fit import checkpoints
watching.SILENT, processes._RUNTIME, processes._START, checkpoints._EVERY = 4.0, 10, 120, 0.5
main()
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(1501, 3))
    f = np.sin(2 * x[:, 0]) + x[:, 1]
    columns = {f"x{j}": x[:, j] for j in range(3)}
    pq.write_table(pa.table({**columns, "y": f + 0.1 * rng.normal(size=1501)}), folder / "numbers.parquet")
    pq.write_table(pa.table({**columns, "y": f + 0.3 * rng.normal(size=1501) > 0}), folder / "classes.parquet")
    return folder


def alone(*arguments):
    done = CliRunner().invoke(app, ["fit", *map(str, arguments), "--quiet"])
    assert done.exit_code == 0, done


def start(*arguments, **environment):
    return start_each(arguments, arguments, **environment)


def start_each(*each, code=QUICK, **environment):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    own = ["--quiet", "--distributed", "--coordinator", address, "--processes", "2", "--process"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": {**os.environ, **environment}}
    return [
        subprocess.Popen([sys.executable, "-c", code, "fit", *map(str, arguments), *own, str(number)], **pipes)
        for number, arguments in enumerate(each)
    ]


def ended(running, timeout=200):
    try:
        said = [one.communicate(timeout=timeout) for one in running]
    except subprocess.TimeoutExpired:
        stop(running)
        raise
    return said, [one.returncode for one in running]


def stop(running):
    for one in running:
        one.kill()
        one.communicate()


def arrays(path):
    model = load(path).fitted_.model
    return model.variational.mean, model.variational.log_std, model.covariance.log_lengthscale


@pytest.mark.parametrize(("memory", "n_devices"), [([], 1), (["--max-memory", "1MB"], 2)])
def test_two_processes_reach_the_model_that_one_reaches(tables, tmp_path, memory, n_devices):
    options = [tables / "numbers.parquet", "--target", "y", *STEPS, "--max-steps", "200", *memory]
    alone(*options, "--out", tmp_path / "one.swsgp")
    devices = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={n_devices}"}
    said, codes = ended(start(*options, "--out", tmp_path / "two.swsgp", "--json", **devices))
    assert codes == [0, 0], said
    # The first speaks and writes, the other does neither.
    assert json.loads(said[0][0])["rows"] == 1501
    assert said[1] == ("", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.swsgp", "two.swsgp"]
    for one, two in zip(*(arrays(tmp_path / name) for name in ("one.swsgp", "two.swsgp")), strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    ("table", "options"), [("numbers", ["--n-landmarks", "20"]), ("classes", ["--max-memory", "2MB"])]
)
def test_two_processes_solve_for_what_one_solves_for(tables, tmp_path, table, options):
    """Hyper-parameters are learned in float32, and conjugate gradients end at a residual of 1e-5."""
    options = [tables / f"{table}.parquet", "--target", "y", "--n-neighbors", "16", "--max-steps", "60", *options]
    alone(*options, "--out", tmp_path / "one.swsgp")
    said, codes = ended(start(*options, "--out", tmp_path / "two.swsgp"))
    assert codes == [0, 0], said
    rows = pq.read_table(tables / f"{table}.parquet").drop_columns(["y"])
    one, two = (load(tmp_path / name) for name in ("one.swsgp", "two.swsgp"))
    assert one.fitted_.record["settings"] == two.fitted_.record["settings"]
    predict = "predict" if table == "numbers" else "predict_proba"
    np.testing.assert_allclose(*(getattr(model, predict)(rows) for model in (one, two)), atol=2e-4)


SEVERAL_DEVICES = """
import sys
import jax, numpy as np
from swsgp import *
x = np.random.default_rng(0).uniform(-2, 2, size=(999, 2))
y = np.sin(3 * x[:, 0]) + x[:, 1]
found = [len(jax.devices()) + 0 * y]
for active, form, moves in ((PerPoint(8), "diag", False), (PerPoint(8), "full", True), (Union(20, 4), "diag", False)):
    model = create(x, Matern52(1.0), Gaussian(), active, n_inducing=40, covariance_form=form, precision="float64")
    trained = train(model, x, y, Settings(steps=40, batch_size=64, learn_inducing=moves))
    found.append(Predictor(trained.model).moments(x)[0])
np.save(sys.argv[1], found)
"""


def test_several_devices_of_one_process_reach_the_model_that_one_reaches(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "one.npy")])
    exec(SEVERAL_DEVICES, {})
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-c", ON_ALL_CORES + SEVERAL_DEVICES, str(tmp_path / "two.npy")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    one, two = (np.load(tmp_path / name) for name in ("one.npy", "two.npy"))
    assert (one[0, 0], two[0, 0]) == (1, 2)
    np.testing.assert_allclose(two[1:], one[1:], rtol=1e-8, atol=1e-9)


# ------------------------------------------------------------------------------------------------------------ faults


def wait_for(file):
    wait_until(file.exists)


def wait_until(condition, found=lambda: None):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, found()
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("who", "how", "words"),
    [
        (1, signal.SIGKILL, "process 1 of 2 (process id {}"),
        (1, signal.SIGSTOP, "process 1 of 2 (process id {}"),
        (0, signal.SIGKILL, "process 0 (at 127.0.0.1:"),
        (0, signal.SIGSTOP, "process 0 (at 127.0.0.1:"),
    ],
)
def test_a_process_that_dies_or_hangs_is_named_and_the_run_goes_on_in_another_number(tables, tmp_path, who, how, words):
    options = [tables / "numbers.parquet", "--target", "y", *STEPS, "--batch-size", "128"]
    options += ["--max-memory", "1MB"] if how == signal.SIGKILL else []
    out, checkpoint = tmp_path / "m.swsgp", tmp_path / "m.swsgp.checkpoint"
    running = start(*options, "--out", out)
    wait_for(checkpoint)
    running[who].send_signal(how)
    # Bounded: well below this.
    said = running[1 - who].communicate(timeout=60)[1]
    stop(running)
    assert running[1 - who].returncode not in (0, None)
    assert words.format(running[who].pid) in said
    assert "--resume" in said
    assert 0 < read_header(checkpoint)["step"] < 800
    assert not out.exists()
    # Neither leaves its rows.
    wait_until(lambda: not list(tmp_path.glob("swsgp-*")), lambda: sorted(tmp_path.rglob("*")))
    if how == signal.SIGSTOP:
        return
    if who == 1:
        alone(*options, "--out", out, "--resume")
        alone(*options, "--out", tmp_path / "whole.swsgp")
        for one, two in zip(*(arrays(tmp_path / name) for name in ("whole.swsgp", "m.swsgp")), strict=True):
            np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-5)
    else:
        said, codes = ended(start(*options, "--out", out, "--resume"))
        assert codes == [0, 0], said
    assert not checkpoint.exists()


def test_an_interruption_of_one_process_is_one_of_all(tables, tmp_path):
    out, checkpoint = tmp_path / "m.swsgp", tmp_path / "m.swsgp.checkpoint"
    running = start(tables / "numbers.parquet", "--target", "y", "--max-steps", "5000", "--out", out)
    wait_for(checkpoint)
    running[1].send_signal(signal.SIGINT)
    said, codes = ended(running)
    assert codes == [130, 130], said
    assert "--resume goes on" in said[0][1]
    assert said[1] == ("", "")
    assert checkpoint.exists()
    assert load(out).fitted_.record["ended_by"] == "interrupted"


def test_a_process_that_keeps_the_others_waiting_is_named():
    watch = object.__new__(watching.Watch)
    watch._n_waits, watch._since = 7, 1000.0
    assert watch._fault("55 6 1 on host", 0.5, now=1000.0 + watching.LATE - 1) == ""
    assert "kept the others waiting" in watch._fault("55 6 1 on host", 0.5, now=1000.0 + watching.LATE + 1)
    # This one waits, too.
    assert watch._fault("55 7 1 on host", 0.5, now=1000.0 + watching.LATE + 1) == ""
    assert "not gone on" in watch._fault("55 7 1 on host", 0.5, now=1000.0 + 2 * watching.LATE + 1)
    assert "has ended" in watch._fault("left", 30.0, now=1000.0 + watching.SILENT + 1)
    watch._since = None
    assert watch._fault("left", 30.0, now=2000.0) == ""
    assert "died or hangs" in watch._fault("55 7 1 on host", watching.SILENT + 1, now=2000.0)


# ---------------------------------------------------------------------------------------------------- called wrongly


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--distributed"], "give each of them the address"),
        (["--coordinator", "127.0.0.1:1"], "go with --distributed"),
    ],
)
def test_processes_that_cannot_come_together_say_so(tables, tmp_path, options, words):
    command = [str(Path(sys.executable).with_name("swsgp")), "fit", str(tables / "numbers.parquet"), "--target", "y"]
    command += ["--out", str(tmp_path / "m.swsgp"), *options]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "OMPI_"))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--target", "y", "--out", "{}/nowhere/m.swsgp"], "there is no such folder: "),
        (["--target", "y", "--out", "{}/m.swsgp", *STEPS, "--batch-size", "33"], "divided evenly"),
    ],
)
def test_a_mistake_ends_all_processes_with_one_line(tables, tmp_path, options, words):
    said, codes = ended(start(tables / "numbers.parquet", *(option.format(tmp_path) for option in options)))
    assert 0 not in codes
    assert words in said[0][1]
    for _, own in said:
        assert len(own.splitlines()) <= 1
        assert "Traceback" not in own
        assert "died" not in own
    assert not list(tmp_path.iterdir())


def test_processes_that_are_not_all_started_say_so(tables, tmp_path):
    options = [tables / "numbers.parquet", "--target", "y", *STEPS, "--out", tmp_path / "m.swsgp"]
    said, codes = ended(start_each(options, code=QUICK.replace(" 120,", " 5,")))
    assert codes[0] not in (0, None)
    assert "not all processes came to 127.0.0.1:" in said[0][1]


@pytest.mark.parametrize(
    ("memory", "change", "words"),
    [
        ([], {"order": np.arange(1501)[::-1]}, "the table of process 1 is not that of process 0"),
        # What the sample does not show.
        (["--max-memory", "1MB"], {"order": np.roll(np.arange(30_000), 1)}, "the table of process 1 is not that"),
        ([], {"options": ["--learning-rate", "0.1"]}, "the settings of process 1 are not those of process 0"),
    ],
    ids=["order", "order on disk", "settings"],
)
def test_processes_that_do_not_learn_the_same_are_told_so(tables, tmp_path, memory, change, words):
    rows = pq.read_table(tables / "numbers.parquet")
    rows = pa.concat_tables([rows] * 20).slice(0, 30_000) if memory else rows
    pq.write_table(rows, tmp_path / "one.parquet")
    pq.write_table(rows.take(change["order"]) if "order" in change else rows, tmp_path / "other.parquet")
    options = ["--target", "y", *STEPS, *memory, "--out", tmp_path / "m.swsgp"]
    other_options = [*options, *change.get("options", [])]
    running = start_each([tmp_path / "one.parquet", *options], [tmp_path / "other.parquet", *other_options])
    said, codes = ended(running)
    assert codes == [2, 2], said
    assert words in said[0][1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.parquet", "other.parquet"]
