"""The program, as a person would run it."""

import subprocess
import sys
from pathlib import Path

PROGRAM = [str(Path(sys.executable).with_name("swsgp"))]


def run(*arguments, cwd=None):
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, cwd=cwd, timeout=300)


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
    assert "demo" in run("--help").stdout
    assert run("--version").stdout.startswith("swsgp ")


def test_an_unknown_command_is_a_usage_error():
    done = run("nonsense")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_written_is_said_in_one_line_before_anything_is_trained(tmp_path):
    (tmp_path / "taken").write_text("a file")
    done = run("demo", "--out", "taken/here", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "choose another folder" in done.stderr
