"""Shapes and types of every annotated function in swsgp are checked while the tests run, each worker on a core."""
# ruff: noqa: E402

import os
from pathlib import Path

# Tests that run side by side, each with threads for all cores, slow one another many times over: a core for each. It
# must be so before NumPy and JAX count the cores.
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
if CORES and WORKER:
    os.sched_setaffinity(0, {CORES[int(WORKER.removeprefix("gw")) % len(CORES)]})

import jax
import numpy as np
import pytest
from jaxtyping import install_import_hook

# Before anything imports swsgp.
install_import_hook("swsgp", "beartype.beartype")


@pytest.fixture
def float64():
    """A test that computes in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def data_folder():
    """The folder with the real data sets; a test that needs it is skipped where there is none."""
    folder = os.environ.get("SWSGP_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("SWSGP_DATA does not name a folder with the data sets")
    return Path(folder)


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    """Names that the examples in docstrings use."""
    import swsgp

    doctest_namespace.update({name: getattr(swsgp, name) for name in swsgp.__all__}, np=np)
