"""What becomes of the compiled operations where they are broken, or memory and threads run out."""

import shutil
import subprocess
import sys
from textwrap import dedent
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from swsgp.errors import FitWarning
from swsgp.ops import native

pytestmark = pytest.mark.skipif(native._native is None, reason="the compiled operations were not built")


@pytest.fixture
def asked_anew():
    native._trouble.cache_clear()
    yield
    native._trouble.cache_clear()


def test_missing_operations_are_said_once(monkeypatch, asked_anew):
    monkeypatch.setattr(native, "find_spec", lambda name: None)
    found, trouble = native._loaded()
    assert found is None
    monkeypatch.setattr(native, "_native", found)
    monkeypatch.setattr(native, "_TROUBLE", trouble)
    with pytest.warns(FitWarning, match="were not built when swsgp was installed"):
        assert not native.is_available()
    assert not native.is_available()


def test_operations_that_jax_refuses_are_left_alone_and_the_reason_is_said(monkeypatch):
    def refuse(*_, **__):
        raise native.jax.errors.JaxRuntimeError("made for another version\nand more")

    monkeypatch.setattr(native.jax.ffi, "register_ffi_target", refuse)
    assert native._loaded() == (None, "could not be loaded (made for another version)")


def test_a_library_that_does_not_load_is_not_taken_for_one_that_is_missing(tmp_path):
    """In a process of its own, in which the library is of no use."""
    (tmp_path / "_native.abi3.so").write_bytes(b"\x7fELF, but no more")
    done = run(
        f"""
        import warnings, swsgp.ops
        swsgp.ops.__path__ = [{str(tmp_path)!r}, *swsgp.ops.__path__]
        from swsgp.ops import native
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            print(native.is_available(), said[0].message)
        """
    )
    assert done.stdout.startswith("False the compiled operations could not be loaded (")


@pytest.mark.parametrize(
    ("name", "broken", "message"),
    [
        ("inverse_factors", lambda k: jnp.zeros_like(k), "give wrong numbers"),
        ("_knows_one_point", lambda: False, "give wrong numbers"),
        ("Tree", lambda _: SimpleNamespace(nearest=lambda *_: (np.array([[2, 1]]), 3)), "give wrong numbers"),
    ],
)
def test_wrong_numbers_are_noticed(monkeypatch, asked_anew, name, broken, message):
    monkeypatch.setattr(native, name, broken)
    with pytest.warns(FitWarning, match=message):
        assert not native.is_available()


@pytest.mark.parametrize("error", [native.jax.errors.JaxRuntimeError, TypeError])
@pytest.mark.parametrize(("name", "device"), [("_works", "cpu"), ("_knows_one_point", "gpu")])
def test_operations_that_fail_are_noticed(monkeypatch, asked_anew, error, name, device):
    def fail():
        raise error("no such instruction\nand more")

    monkeypatch.setattr(native, name, fail)
    monkeypatch.setattr(native.jax, "default_backend", lambda: device)
    with pytest.warns(FitWarning, match=r"do not work on this machine \(no such instruction\)"):
        assert not native.works_on_host()


def test_arguments_that_are_refused_are_an_error_not_an_end():
    code = "import numpy as np\nfrom swsgp.ops.native import _native\ntry:\n    _native.latent(np.zeros(3))\n"
    done = run(f"{code}except TypeError:\n    print('refused')\n")
    assert done.stdout == "refused\n", done.stderr


def run(code):
    return subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, timeout=300)


_LITTLE_LEFT = """
    import resource
    import numpy as np
    from swsgp.ops import native

    rng = np.random.default_rng(0)

    def leave(n_bytes):
        used = 4096 * int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (used + n_bytes,) * 2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are set as on Linux")
@pytest.mark.parametrize(
    ("prepared", "left", "work"),
    [
        (
            "tree, x = native.Tree(rng.normal(size=(2000, 8))), rng.normal(size=(1_000_000, 8))",
            30_000_000,
            "tree.nearest(x, 1)",
        ),
        (
            "index = np.sort(rng.integers(0, 100_000, size=(20_000, 16)), axis=1).astype(np.int32)\n"
            "blocks = rng.normal(size=(20_000, 16, 16))",
            40_000_000,
            "native.sum_of_blocks(index, blocks, 100_000)",
        ),
        ("points = rng.normal(size=(1_000_000, 4))", 10_000_000, "native.Tree(points)"),
    ],
)
def test_where_memory_runs_out_there_is_an_error_not_an_end(prepared, left, work):
    code = f"{dedent(_LITTLE_LEFT)}\n{prepared}\nleave({left})\n"
    done = run(f"{code}try:\n    {work}\nexcept MemoryError:\n    print('no memory')\n")
    assert done.stdout == "no memory\n", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are set as on Linux")
def test_where_threads_cannot_be_had_one_does_everything():
    done = run(
        dedent(_LITTLE_LEFT)
        + dedent(
            """
            native.n_cores = lambda: 64
            tree, x = native.Tree(rng.normal(size=(20_000, 4))), rng.normal(size=(10_000, 4))
            expected = tree.nearest(x, 4)[0]
            leave(30_000_000)
            print((tree.nearest(x, 4)[0] == expected).all())
            """
        )
    )
    assert done.stdout == "True\n", done.stderr


@pytest.mark.skipif(shutil.which("objdump") is None, reason="there is no disassembler")
def test_wide_instructions_are_in_their_own_functions_alone():
    """A function that several files have is taken from any of them, also on a machine that lacks the instructions."""
    lines = subprocess.run(
        ["objdump", "-d", "-C", "--no-show-raw-insn", native._native.__file__],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    name, wide = "", set()
    for line in lines:
        if line.endswith(">:"):
            name = line
        elif "%ymm" in line or "%zmm" in line:
            wide.add(name)
    assert [name for name in wide if "avx2::" not in name and "avx512::" not in name] == []
