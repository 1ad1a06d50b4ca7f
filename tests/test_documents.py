"""What the documents promise."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_in_the_readme_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert len(re.findall(r"\d\.\d", capsys.readouterr().out)) >= 10


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
