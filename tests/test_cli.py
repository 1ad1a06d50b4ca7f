"""The program, as a person would run it: in processes of their own, on files."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from houses import frame

import swsgp
from swsgp import cli

PROGRAM = [str(Path(sys.executable).with_name("swsgp"))]
QUICK = ["--n-inducing", "64", "--batch-size", "64", "--max-steps", "128", "--kl-scale", "1", "--kernel", "rbf"]


def run(*arguments, cwd=None):
    """In a process of its own."""
    return subprocess.run([*PROGRAM, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=300)


def call(*arguments):
    """In this process, which is faster; the same otherwise."""
    out, errors, shown = io.StringIO(), io.StringIO(), warnings.showwarning
    with (
        mock.patch.object(sys, "argv", ["swsgp", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        finally:
            warnings.showwarning = shown
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), errors.getvalue())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tables, and a model of each kind, that no test changes."""
    folder = tmp_path_factory.mktemp("cli")
    X, y = frame(400)
    table = X.assign(id=range(400), price=y.round(3), kind=np.where(y > 2400, "dear", "cheap"))
    table[:300].to_csv(folder / "train.csv", index=False)
    table[300:].to_csv(folder / "test.csv", index=False)
    table[300:].to_parquet(folder / "test.parquet")
    for target, other in (("price", "kind"), ("kind", "price")):
        columns = ["--target", target, "--exclude", "id", "--exclude", other]
        done = call("fit", folder / "train.csv", *columns, *QUICK, "--out", folder / f"{target}.swsgp")
        assert done.returncode == 0, done.stderr
    return folder


def failed(done, message, code=1):
    """One line that says what is wrong, and no stack trace."""
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("swsgp: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert message in done.stderr
    return True


def test_predictions_do_not_go_into_the_folder_that_is_the_table(folder, tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.parquet").write_bytes((folder / "test.parquet").read_bytes())
    done = call("predict", folder / "price.swsgp", tmp_path / "rows", "--out", tmp_path / "rows" / "p.parquet")
    assert done.returncode == 2
    assert "name another place" in done.stderr
    done = call("predict", folder / "price.swsgp", tmp_path / "rows", "--out", tmp_path / "p.parquet")
    assert done.returncode == 0
    assert len(pd.read_parquet(tmp_path / "p.parquet")) == 100


def test_the_demo_writes_a_picture_and_a_table_and_names_them(tmp_path):
    done = run("demo", "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "here/posterior-1d.png" in done.stdout
    assert "here/digits.md" in done.stdout
    assert (tmp_path / "here/posterior-1d.png").read_bytes().startswith(b"\x89PNG")
    rows = [line.split("|") for line in (tmp_path / "here/digits.md").read_text().splitlines()[2:]]
    nll = {name.strip(): float(value) for _, name, _, value, *_ in rows}
    assert nll["SWSGP-128-16"] < nll["logistic regression"] - 0.1


def test_help_and_version_are_there():
    text = run("--help").stdout
    for command in ("demo", "fit", "predict", "evaluate", "inspect", "report"):
        assert command in text
        assert "Usage" in run(command, "--help").stdout
    assert run("--version").stdout.startswith("swsgp ")


def test_a_command_that_is_called_wrongly_ends_with_2():
    for arguments in (["nonsense"], ["fit"], ["predict", "m.swsgp"], ["fit", "t.csv", "--max-steps", "many"]):
        done = call(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_fit_says_what_it_took_the_target_for_and_what_it_chose(folder, tmp_path):
    done = call(
        "fit",
        folder / "train.csv",
        "--target",
        "price",
        "--include",
        "size",
        "--max-steps",
        "20",
        "--out",
        tmp_path / "m.swsgp",
    )
    assert done.returncode == 0, done.stderr
    assert "'price' is taken for numbers" in done.stderr
    assert "kl_scale=by held-out rows" in done.stderr or "n_landmarks=" in done.stderr
    assert "step 20 of 20" in done.stderr
    assert "SWSGPRegressor" in done.stdout
    assert os.listdir(tmp_path) == ["m.swsgp"]
    assert list(swsgp.load(tmp_path / "m.swsgp").feature_names_in_) == ["size"]


def test_fit_prints_json_and_nothing_else_if_asked(folder, tmp_path):
    done = run(
        "fit",
        folder / "train.csv",
        "--target",
        "kind",
        "--exclude",
        "price",
        *QUICK,
        "--max-steps",
        "20",
        "--out",
        tmp_path / "m.swsgp",
        "--json",
        "--quiet",
    )
    summary = json.loads(done.stdout)
    assert summary["estimator"] == "SWSGPClassifier"
    assert summary["steps"] == 20
    assert done.stderr == ""


@pytest.mark.parametrize("out", ["p.csv", "p.parquet", "p.feather"])
@pytest.mark.parametrize("table", ["test.csv", "test.parquet"])
def test_predictions_are_those_of_the_library(folder, tmp_path, table, out):
    done = call("predict", folder / "price.swsgp", folder / table, "--keep", "id", "--out", tmp_path / out)
    assert done.returncode == 0, done.stderr
    read = {".csv": pd.read_csv, ".parquet": pd.read_parquet, ".feather": pd.read_feather}[Path(out).suffix]
    found = read(tmp_path / out)
    model = swsgp.load(folder / "price.swsgp")
    X = pd.read_csv(folder / "test.csv")[list(model.feature_names_in_)]
    mean, std = model.predict(X, return_std=True)
    lower, upper = model.predict_interval(X)
    assert list(found.columns) == ["id", "mean", "std", "lower", "upper"]
    np.testing.assert_array_equal(found["id"].astype(int), np.arange(300, 400))
    np.testing.assert_allclose(found[["mean", "std", "lower", "upper"]], np.column_stack([mean, std, lower, upper]))


def test_classes_are_predicted_with_a_probability_for_each(folder, tmp_path):
    done = call("predict", folder / "kind.swsgp", folder / "test.parquet", "--out", tmp_path / "p.parquet", "--json")
    assert json.loads(done.stdout)["rows"] == 100
    found = pd.read_parquet(tmp_path / "p.parquet")
    assert list(found.columns) == ["class", "proba_cheap", "proba_dear"]
    np.testing.assert_allclose(found.proba_cheap + found.proba_dear, 1.0)
    assert ((found.proba_dear > 0.5) == (found["class"] == "dear")).all()


def test_evaluate_gives_the_scores_of_the_library(folder):
    for name, table in (("price", "test.csv"), ("kind", "test.parquet")):
        done = call("evaluate", folder / f"{name}.swsgp", folder / table, "--json")
        scores = json.loads(done.stdout)
        test = pd.read_parquet(folder / "test.parquet")
        model = swsgp.load(folder / f"{name}.swsgp")
        expected = model.evaluate(test[list(model.feature_names_in_)], test[name]).scores
        for system, values in expected.items():
            for score, value in values.items():
                assert scores[system][score] == pytest.approx(value, rel=1e-6), (system, score)
    assert "rmse" in call("evaluate", folder / "price.swsgp", folder / "test.csv").stdout


def test_inspect_says_what_is_in_the_file(folder):
    facts = json.loads(call("inspect", folder / "price.swsgp", "--json").stdout)
    assert facts["target"] == "price"
    assert set(facts["relevance"]) == {"size", "flat", "noise", "city"}
    assert facts["settings"]["n_inducing"] == 64
    assert facts["versions"]["swsgp"] == swsgp.__version__
    assert "n_inducing" in call("inspect", folder / "price.swsgp").stdout


def test_report_writes_a_page(folder, tmp_path):
    done = call("report", folder / "kind.swsgp", folder / "test.csv", "--out", tmp_path / "r.html")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<h1>kind.swsgp</h1>" in page
    assert "<svg" in page


def test_a_tables_memory_is_not_held(tmp_path, folder):
    """A table of 100 MB goes through in much less memory than it has."""
    long, out = str(tmp_path / "long.parquet"), str(tmp_path / "out.parquet")
    code = f"""
import resource
from pathlib import Path
from swsgp.data.table_files import batches, write_batches

def size():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

start = size()
parts = (part.select(["a"]) for part in batches(Path({long!r}), ["a", "b"]))
print(write_batches(Path({out!r}), parts), size() - start)
"""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    with pq.ParquetWriter(tmp_path / "long.parquet", pa.schema([("a", pa.float64()), ("b", pa.float64())])) as writer:
        for _ in range(50):
            writer.write_table(pa.table({"a": rng.normal(size=131_072), "b": rng.normal(size=131_072)}))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    rows, kilobytes = map(int, done.stdout.split())
    assert rows == 50 * 131_072
    assert kilobytes < 60_000


# ----------------------------------------------------------------------------------------------------- bad input


def test_files_that_are_not_there_or_not_what_they_should_be(folder, tmp_path):
    (tmp_path / "text.swsgp").write_text("not a model")
    (tmp_path / "bad.parquet").write_text("not a table")
    failed(call("predict", tmp_path / "none.swsgp", folder / "test.csv", "--out", tmp_path / "p.csv"), "No such file")
    failed(
        call("predict", tmp_path / "text.swsgp", folder / "test.csv", "--out", tmp_path / "p.csv"),
        "not a whole file of swsgp",
    )
    failed(call("inspect", tmp_path / "text.swsgp"), "not a whole file of swsgp")
    failed(call("evaluate", folder / "price.swsgp", tmp_path / "none.csv"), "none.csv")
    failed(call("evaluate", folder / "price.swsgp", tmp_path / "bad.parquet"), "bad.parquet cannot be read")
    failed(
        call("fit", tmp_path / "bad.parquet", "--target", "y", "--out", tmp_path / "m.swsgp"),
        "bad.parquet cannot be read",
    )
    failed(call("fit", folder / "test.xlsx", "--target", "y", "--out", tmp_path / "m.swsgp"), "must end in one of .csv")
    assert sorted(os.listdir(tmp_path)) == ["bad.parquet", "text.swsgp"]


def test_columns_that_are_not_there_are_named(folder, tmp_path):
    train = folder / "train.csv"
    failed(call("fit", train, "--target", "cost", "--out", tmp_path / "m.swsgp"), "no column 'cost'; it has size, flat")
    failed(
        call("fit", train, "--target", "price", "--exclude", "nope", "--out", tmp_path / "m.swsgp"), "no column 'nope'"
    )
    pd.read_csv(train).drop(columns=["size", "price"]).to_csv(tmp_path / "less.csv", index=False)
    failed(call("predict", folder / "price.swsgp", tmp_path / "less.csv", "--out", tmp_path / "p.csv"), "lacks 'size'")
    failed(call("evaluate", folder / "price.swsgp", tmp_path / "less.csv"), "no column 'price' to compare with")
    failed(call("predict", folder / "price.swsgp", train, "--keep", "nope", "--out", tmp_path / "p.csv"), "nope")
    assert os.listdir(tmp_path) == ["less.csv"]


def test_values_that_cannot_be_used_are_named(folder, tmp_path):
    bad = pd.read_csv(folder / "train.csv")
    bad.loc[[3, 5], "size"] = np.nan
    bad.to_csv(tmp_path / "holes.csv", index=False)
    bad.assign(size="big").to_csv(tmp_path / "text.csv", index=False)
    bad[:0].to_csv(tmp_path / "empty.csv", index=False)
    options = ["--target", "price", "--exclude", "kind", *QUICK, "--out", tmp_path / "m.swsgp", "--quiet"]
    failed(call("fit", tmp_path / "holes.csv", *options), "in column 'size' (2)")
    failed(call("fit", tmp_path / "empty.csv", *options), "the target has no values")
    failed(call("fit", tmp_path / "holes.csv", *options, "--max-categories", "0"), "max_categories", code=2)
    options[-1:] = ["--quiet", "--missing", "drop"]
    failed(call("fit", tmp_path / "holes.csv", *options, "--kernel", "cubic"), "kernel must be", code=2)
    model = folder / "price.swsgp"
    failed(call("predict", model, tmp_path / "text.csv", "--out", tmp_path / "p.csv"), "column 'size' must be numbers")
    failed(call("predict", model, tmp_path / "holes.csv", "--out", tmp_path / "p.csv"), "in column 'size' (2)")
    failed(call("predict", model, tmp_path / "empty.csv", "--out", tmp_path / "p.csv"), "no rows")
    failed(call("evaluate", model, tmp_path / "empty.csv"), "no rows")
    failed(call("report", model, tmp_path / "empty.csv", "--out", tmp_path / "r.html"), "no rows")
    assert call("fit", tmp_path / "holes.csv", *options, "--json").returncode == 0
    assert not (tmp_path / "p.csv").exists()


def test_an_output_that_is_an_input_is_refused(folder, tmp_path):
    table, model = tmp_path / "t.csv", tmp_path / "m.swsgp"
    table.write_bytes((folder / "test.csv").read_bytes())
    model.write_bytes((folder / "price.swsgp").read_bytes())
    (tmp_path / "link.csv").symlink_to(table)
    before = table.read_bytes(), model.read_bytes()
    failed(call("fit", table, "--target", "price", "--out", table), "is the same file as", code=2)
    failed(call("predict", model, table, "--out", table), "is the same file as", code=2)
    failed(call("predict", model, table, "--out", tmp_path / "link.csv"), "is the same file as", code=2)
    failed(call("report", model, table, "--out", model), "is the same file as", code=2)
    assert (table.read_bytes(), model.read_bytes()) == before


def test_what_a_target_cannot_be(folder, tmp_path):
    train, out = folder / "train.csv", ["--out", tmp_path / "m.swsgp", "--quiet"]
    failed(call("fit", train, "--target", "price", "--include", "price", *out), "cannot be an input, too", code=2)
    failed(call("fit", train, "--target", "price", "--task", "classification", *out), "learns numbers")
    failed(call("fit", train, "--target", "kind", "--task", "regression", *out), "must be numbers, got text")
    dates = pd.read_csv(train).assign(day=pd.date_range("2026-01-01", periods=300).astype(str))
    dates.to_csv(tmp_path / "dates.csv", index=False)
    failed(call("fit", tmp_path / "dates.csv", "--target", "day", "--exclude", "kind", *out), "got dates")
    failed(call("fit", tmp_path / "dates.csv", "--target", "kind", *out), "column 'day'")
    assert os.listdir(tmp_path) == ["dates.csv"]


def test_kept_columns_are_copied_letter_by_letter_and_labels_find_their_type(folder, tmp_path):
    table = pd.read_csv(folder / "test.csv", dtype=str).assign(id="007", big="12345678901234567891")
    table.to_csv(tmp_path / "t.csv", index=False)
    keep = ["--keep", "id", "--keep", "big", "--keep", "size"]
    done = call("predict", folder / "price.swsgp", tmp_path / "t.csv", *keep, "--out", tmp_path / "p.csv")
    assert done.returncode == 0, done.stderr
    found = pd.read_csv(tmp_path / "p.csv", dtype=str)
    assert (found["id"] == "007").all()
    assert (found["big"] == "12345678901234567891").all()
    np.testing.assert_array_equal(found["size"], table["size"])
    # Labels that were text in training because of one of them, and whose flags were true and false.
    grown = pd.read_csv(folder / "train.csv")[["size"]].assign(flag=np.arange(300) % 2 == 0)
    grown["label"] = np.where(grown["size"] > 150, "x", np.where(grown["size"] > 80, "2", "1"))
    grown.to_csv(tmp_path / "g.csv", index=False)
    fit = call("fit", tmp_path / "g.csv", "--target", "label", *QUICK, "--out", tmp_path / "g.swsgp", "--quiet")
    assert fit.returncode == 0, fit.stderr
    grown[grown.label != "x"].to_csv(tmp_path / "less.csv", index=False)
    done = call("evaluate", tmp_path / "g.swsgp", tmp_path / "less.csv", "--json")
    assert json.loads(done.stdout)["swsgp"]["error"] < 0.2, done.stderr
    grown.assign(label="y").to_csv(tmp_path / "other.csv", index=False)
    failed(call("evaluate", tmp_path / "g.swsgp", tmp_path / "other.csv"), "were not there in training: y")


def test_places_that_cannot_be_written_are_found_before_the_work(folder, tmp_path):
    (tmp_path / "taken").write_text("a file")
    for command in (
        ["demo", "--out", tmp_path / "taken" / "here"],
        ["fit", folder / "train.csv", "--target", "price", "--out", tmp_path / "none" / "m.swsgp"],
        ["fit", folder / "train.csv", "--target", "price", "--out", tmp_path],
        ["predict", folder / "price.swsgp", folder / "test.csv", "--out", tmp_path / "taken" / "p.csv"],
        ["report", folder / "price.swsgp", folder / "test.csv", "--out", tmp_path / "none" / "r.html"],
    ):
        done = call(*command)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1, done.stderr
    assert os.listdir(tmp_path) == ["taken"]


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small file system takes rights that are not there")
def test_a_full_disk_leaves_what_was_there(folder, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", disk], capture_output=True).returncode:
        pytest.skip("mounting a small file system takes rights that are not there")
    try:
        (disk / "p.csv").write_text("old")
        (disk / "m.swsgp").write_text("old")
        failed(call("predict", folder / "price.swsgp", folder / "train.csv", "--out", disk / "p.csv"), "No space left")
        fit = [
            "fit",
            folder / "train.csv",
            "--target",
            "price",
            "--exclude",
            "kind",
            *QUICK,
            "--max-steps",
            "5",
            "--quiet",
        ]
        failed(call(*fit, "--n-inducing", "256", "--out", disk / "m.swsgp"), "No space left")
        # What was learned is kept, for --resume on a disk with more room.
        assert sorted(os.listdir(disk)) == ["m.swsgp", "m.swsgp.checkpoint", "p.csv"]
        assert (disk / "p.csv").read_text() == (disk / "m.swsgp").read_text() == "old"
    finally:
        subprocess.run(["umount", disk], check=True)


def test_debug_shows_the_stack_trace(folder):
    done = run("evaluate", folder / "price.swsgp", "none.csv", "--debug")
    assert done.returncode != 0
    assert "Traceback" in done.stderr


# ------------------------------------------------------------------------------------------------- interruptions


def test_ctrl_c_keeps_the_model_and_resume_reaches_the_result_of_an_unbroken_run(folder, tmp_path):
    command = ["fit", folder / "train.csv", "--target", "price", "--exclude", "kind", "--exclude", "id"]
    command += ["--covariance", "full", "--n-inducing", "32", "--n-neighbors", "4", "--batch-size", "32"]
    command += ["--max-steps", "100000"]
    assert run(*command, "--out", tmp_path / "whole.swsgp", "--quiet").returncode == 0

    broken, checkpoint = tmp_path / "broken.swsgp", tmp_path / "broken.swsgp.checkpoint"
    process = subprocess.Popen(
        [*PROGRAM, *map(str, command), "--out", broken], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    # The first line about steps comes two seconds on, well before the end.
    lines = [process.stderr.readline()]
    while not lines[-1].startswith("step "):
        assert lines[-1], "it ended before a line about steps"
        lines.append(process.stderr.readline())
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "--resume goes on" in errors
    assert checkpoint.exists()
    test = pd.read_csv(folder / "test.csv")
    X = test[list(swsgp.load(broken).feature_names_in_)]
    assert np.isfinite(swsgp.load(broken).predict(X)).all()
    failed(run(*command, "--out", broken), "go on from it with --resume, or remove it", code=2)
    resumed = run(*command, "--out", broken, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert not checkpoint.exists()
    whole = swsgp.load(tmp_path / "whole.swsgp")
    assert swsgp.load(broken).fitted_.record["steps"] == 100_000
    np.testing.assert_array_equal(swsgp.load(broken).predict(X, return_std=True), whole.predict(X, return_std=True))


def test_other_systems_are_one_word_away(folder, tmp_path):
    columns = ["--target", "price", "--exclude", "id", "--exclude", "kind"]
    model = tmp_path / "m.swsgp"
    done = call("fit", folder / "train.csv", *columns, "--model", "transductive-gps", "--max-steps", 10, "--out", model)
    assert done.returncode == 0, done.stderr
    assert "n_neighbors            100" in done.stdout
    done = call("predict", model, folder / "test.csv", "--out", tmp_path / "p.csv")
    assert done.returncode == 0, done.stderr
    assert len(pd.read_csv(tmp_path / "p.csv")) == 100
    failed(
        call("fit", folder / "train.csv", *columns, "--model", "svm", "--quiet", "--out", model),
        "model must be one of swsgp, swsgp-u, svgp, full-gp",
        code=2,
    )
