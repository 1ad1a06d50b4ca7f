"""What the documents promise."""

import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BASELINES = (ROOT / "docs" / "baselines.md").read_text(encoding="utf-8")
SYSTEMS = ("swsgp", "GPyTorch SVGP-1024", "GPBoost Vecchia-20")


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", README, re.DOTALL), ids=["estimator", "engine"])
def test_the_examples_in_the_readme_run(example, capsys):
    exec(compile(example, "README.md", "exec"), {})
    assert len(re.findall(r"\d\.\d*", capsys.readouterr().out)) >= 6


def test_the_examples_of_other_systems_run(capsys):
    for example in re.findall(r"```python\n(.*?)```", BASELINES, re.DOTALL):
        exec(compile(example, "baselines.md", "exec"), {})
    assert float(capsys.readouterr().out) > 0


def test_every_option_named_in_the_documents_is_one_of_the_program():
    # The text of --help is drawn to the width of a terminal; the parameters are what it is drawn from.
    from typer.main import get_command

    from swsgp.cli import app

    root = get_command(app)
    known = {option for command in [root, *root.commands.values()] for p in command.params for option in p.opts}
    text = README + BASELINES + (ROOT / "docs" / "program.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert named
    assert named <= known | {"--help"}


def test_every_make_command_named_is_in_the_makefile():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for document in (README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        for target in re.findall(r"(?:`|^ *)make ([\w-]+)", document, re.MULTILINE):
            assert target in targets


@pytest.mark.parametrize("path", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=lambda path: path.name)
def test_links_lead_to_files_that_are_there(path):
    for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


def test_the_speeds_in_the_readme_are_those_of_the_committed_run():
    results = (ROOT / "results" / "bench-engine.md").read_text(encoding="utf-8")
    rows = [line for line in README.splitlines() if line.startswith("| M=")]
    assert rows
    assert all(row in results for row in rows)


def test_the_scores_in_the_readme_are_those_of_the_committed_run():
    results = (ROOT / "results" / "bench-accuracy.md").read_text(encoding="utf-8")
    found = {}
    for line in results.splitlines():
        if line.count("|") == 10:
            name, system, _, nll, *_, seconds = (cell.strip() for cell in line.strip("|").split("|"))
            found[name, system] = nll.replace("-", "−"), f"{seconds} s"
    rows = [
        line
        for line in README.splitlines()
        if re.match(r"\| (powerplant|kin8nm|protein|eeg|credit|spam|airline) ", line)
    ]
    assert len(rows) == 7
    for row in rows:
        name, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        for system, pair in zip(SYSTEMS, zip(cells[::2], cells[1::2], strict=True), strict=True):
            assert found.get((name, system), ("–", "")) == pair


def test_the_page_on_the_papers_experiments_is_made_of_the_results():
    from swsgp.experiments.page import page

    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert text == page(ROOT / "results" / "reproduce")


def test_the_tables_on_the_papers_experiments_are_made_of_the_logs(data_folder, tmp_path, monkeypatch):
    from swsgp.experiments.page import write_tables

    monkeypatch.setattr("swsgp.experiments.study.Study.write_figure", lambda study, figure: None)
    shutil.copytree(ROOT / "results" / "reproduce", tmp_path, dirs_exist_ok=True)
    tables = sorted(tmp_path.glob("*/*.md"))
    before = [table.read_text(encoding="utf-8") for table in tables]
    write_tables(tmp_path)
    assert [table.read_text(encoding="utf-8") for table in tables] == before
