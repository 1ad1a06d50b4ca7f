"""What does not fit into memory is refused before it is tried, with its sizes and what to change."""

from types import SimpleNamespace

import numpy as np
import pytest

from swsgp import Gaussian, Matern52, PerPoint, Settings, Softmax, SWSGPRegressor, create, memory, processes, train
from swsgp.errors import SettingError
from swsgp.fit.solved import Form, _that_fit


@pytest.fixture
def little(monkeypatch, tmp_path):
    """A machine with 2 MB left."""
    (tmp_path / "meminfo").write_text("MemTotal: 1000000 kB\nMemAvailable:   2000 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "cgroup")


def model_of(n_inducing, likelihood=None, **options):
    x = np.linspace(0, 1, n_inducing)[:, None]
    options = {"n_inducing": n_inducing, "placement": "subset", **options}
    return create(x, Matern52(0.2), likelihood or Gaussian(), PerPoint(4), **options)


def test_a_full_s(little):
    with pytest.raises(SettingError, match=r"full S of n_inducing=1,000 takes about 28.0 MB .* lower n_inducing"):
        model_of(1000, covariance_form="full")


def test_a_full_s_whose_places_32_bits_cannot_name():
    with pytest.raises(SettingError, match=r"at most 46,340 inducing points, got 46,341; take a diagonal S"):
        model_of(46_341, covariance_form="full")


def test_a_diagonal_s_of_several_latent_functions(little):
    model_of(8_000)
    with pytest.raises(SettingError, match=r"training n_inducing=10,000 takes about 13.1 MB .* lower it"):
        model_of(10_000, Softmax(10))


def test_a_table_of_neighbours(little):
    x = np.linspace(0, 1, 20_000)[:, None]
    model = create(x, Matern52(0.2), Gaussian(), PerPoint(16), n_inducing=32, placement="subset")
    with pytest.raises(SettingError, match="neighbours of 20,000 rows"):
        train(model, x, x[:, 0], Settings(steps=1))


def test_the_closed_form(little):
    """Before hyper-parameters are learned."""
    x = np.linspace(0, 1, 3000)[:, None]
    with pytest.raises(SettingError, match="3,000 rows, n_inducing=3,000, n_neighbors=4"):
        SWSGPRegressor(n_neighbors=4, max_steps=10**9, early_stopping=False).fit(x, x[:, 0])


def test_landmarks_that_do_not_fit_are_left_out_where_others_do(little, monkeypatch):
    forms = [Form(1000, 4, n, 1.0) for n in (0, 200)]
    assert _that_fit(forms, 1000, None) == forms[:1]
    with pytest.raises(SettingError, match="n_landmarks=200"):
        _that_fit(forms[1:], 1000, None)
    monkeypatch.setattr(processes, "count", lambda: 2)
    monkeypatch.setattr(processes, "summed", lambda fits: fits)
    with pytest.raises(SettingError, match="another process"):
        _that_fit(forms[:1], 1000, None)


def test_a_small_table_where_little_is_left(little):
    x = np.linspace(0, 1, 200)[:, None]
    SWSGPRegressor(n_neighbors=4, max_steps=1).fit(x, x[:, 0])


def group(folder, limit, used, file=0, *, names=("memory.max", "memory.current", "")):
    """Half of the `file` pages have been used twice."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    half = f"{file // 2}\n"
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]}inactive_file {half}{names[2]}active_file {half}")


def test_the_limits_of_containers_count(monkeypatch, tmp_path):
    """Of the process's own group, and of those above it."""
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "own")
    (tmp_path / "own").write_text("0::/bätch/job\n", encoding="utf-8")
    group(tmp_path / "bätch" / "job", "max", 10)
    memory.check_memory("this", 1e6, "")
    group(tmp_path / "bätch", 5_000_000, 4_500_000, 300_000)
    with pytest.raises(SettingError, match=r"this takes about 1.0 MB of memory, and 0.8 MB are free; less"):
        memory.check_memory("this", 1e6, "less")
    (tmp_path / "own").write_text("3:cpu,memory:/job\n1:pids:/\n")
    memory.check_memory("this", 1e6, "")
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    group(tmp_path / "memory", 1_000_000, 500_000, names=names)
    with pytest.raises(SettingError, match=r"0.5 MB are free"):
        memory.check_memory("this", 1e6, "less")


def test_the_memory_of_a_gpu_counts(monkeypatch):
    device = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 3_000_000, "bytes_in_use": 2_000_000})
    memory.check_device_memory("this", 1e30, "")
    monkeypatch.setattr(memory.jax, "local_devices", lambda: [device])
    with pytest.raises(SettingError, match=r"this takes about 2.0 MB of memory, and 1.0 MB are free on the device"):
        memory.check_device_memory("this", 2e6, "less")


def test_where_the_system_does_not_tell_nothing_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "nothing")
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "nothing")
    memory.check_memory("anything", 1e30, "")
