"""The package as a whole: who imports whom, what is public, what importing costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import swsgp

ROOT = Path(swsgp.__file__).parent

# Each part may import the parts named here, and itself.
ALLOWED = {
    "errors": set(),
    "shapes": {"errors"},
    "arrays": {"errors"},
    "memory": {"errors"},
    "watching": set(),
    "processes": {"errors", "watching"},
    "files": set(),
    "metrics": set(),
    "plots": set(),
    "yardsticks": set(),
    "serialization": {"errors", ""},
    "data": {"errors", "arrays", "files"},
    "ops": {"errors", "shapes"},
    "gp": {"errors", "arrays", "memory", "shapes", "ops"},
    "fit": {"errors", "arrays", "memory", "shapes", "ops", "gp", "data", "files", "serialization", "processes"},
    "baselines": {"errors", "arrays", "shapes", "ops", "gp", "data", "fit"},
    "fitted": {"errors", "shapes", "gp", "data", "baselines", "serialization", "yardsticks"},
    "evaluation": {"errors", "fitted", "metrics"},
    "facts": {"data", "gp", "evaluation", "fitted"},
    "report": {"data", "evaluation", "facts", "plots", ""},
    "printing": {"estimators"},
    "estimators": {
        "errors",
        "arrays",
        "files",
        "serialization",
        "data",
        "gp",
        "fit",
        "baselines",
        "fitted",
        "evaluation",
    }
    | {"facts", "report", "shapes", "yardsticks", "processes"},
    "experiments": {"errors", "data", "ops", "gp", "fit", "baselines", "files", "metrics", "plots", "serialization"},
    "demo": {"data", "files", "fit", "gp", "metrics", "plots"},
    "streams": {"errors", "data", "estimators"},
    "cli": {"streams", "errors", "files", "data", "serialization", "estimators", "demo", "experiments", "fit", ""}
    | {"printing", "processes"},
    "": set(),
}


def imports(path):
    """The parts of swsgp that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            if node.module == "swsgp":
                names = [f"swsgp.{a.name}" if (ROOT / f"{a.name}.py").exists() else "swsgp" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.split(".")[0] == "swsgp":
                yield [*name.split("."), ""][1]


def part_of(path):
    first = path.relative_to(ROOT).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_imports_only_the_layers_below_it(path):
    part = part_of(path)
    assert part in ALLOWED, f"say in this test what {part} may import"
    assert set(imports(path)) <= ALLOWED[part] | {part}


def test_everything_public_is_there():
    for name in swsgp.__all__:
        assert getattr(swsgp, name) is not None
    assert set(swsgp.__all__) == set(dir(swsgp))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = swsgp.nonsense


def test_importing_the_package_and_its_program_brings_in_neither_jax_nor_matplotlib():
    code = "import sys, swsgp, swsgp.cli; print([m for m in ('jax', 'matplotlib', 'sklearn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_looking_at_a_models_file_takes_no_jax(tmp_path):
    swsgp.SWSGPRegressor(n_inducing=4, max_steps=2).fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0]).save(
        tmp_path / "m.swsgp"
    )
    code = (
        "import sys; from swsgp.cli import main; sys.argv = ['swsgp', 'inspect', sys.argv[1]]\n"
        "try: main()\n"
        "finally: print([m for m in ('jax', 'matplotlib', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "m.swsgp"], capture_output=True, text=True, check=True
    )
    assert "SWSGPRegressor" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
