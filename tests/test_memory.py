"""What does not fit into memory is refused before it is tried, with its sizes and what to change."""

import numpy as np
import pytest

from swsgp import Gaussian, Matern52, PerPoint, Settings, SWSGPRegressor, create, memory, train
from swsgp.errors import SettingError


@pytest.fixture
def little(monkeypatch, tmp_path):
    """A machine with 2 MB left."""
    (tmp_path / "meminfo").write_text("MemTotal: 1000000 kB\nMemAvailable:   2000 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")


def test_a_full_s(little):
    x = np.linspace(0, 1, 2000)[:, None]
    with pytest.raises(SettingError, match=r"full S of n_inducing=1,000 takes about 8.0 MB .* lower n_inducing"):
        create(x, Matern52(0.2), Gaussian(), PerPoint(4), n_inducing=1000, covariance_form="full", placement="subset")


def test_a_table_of_neighbours(little):
    x = np.linspace(0, 1, 20_000)[:, None]
    model = create(x, Matern52(0.2), Gaussian(), PerPoint(16), n_inducing=32, placement="subset")
    with pytest.raises(SettingError, match="neighbours of 20,000 rows"):
        train(model, x, x[:, 0], Settings(steps=1))


def test_the_closed_form(little):
    x = np.linspace(0, 1, 300)[:, None]
    with pytest.raises(SettingError, match="n_inducing=300, n_neighbors=4"):
        SWSGPRegressor(n_neighbors=4, max_steps=1, early_stopping=False).fit(x, x[:, 0])


def test_where_the_system_does_not_tell_nothing_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "nothing")
    memory.check_memory("anything", 1e30, "")
