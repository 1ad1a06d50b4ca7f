"""A run that is interrupted, killed or broken off goes on as if nothing had happened."""

import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from swsgp import Gaussian, Matern52, PerPoint, Settings, create, train
from swsgp.errors import ModelFileError, SettingError
from swsgp.fit import checkpoints

SETTINGS = Settings(steps=400, batch_size=32, evaluate_every=50, learning_rate=0.02)


def data():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(300, 2))
    return x, np.sin(3 * x[:, 0]) + 0.1 * rng.normal(size=300)


def start(x, **options):
    return create(x, Matern52(np.ones(2)), Gaussian(0.1), PerPoint(4), n_inducing=40, **options)


def assert_same(one, other):
    for ours, theirs in zip(jax.tree.leaves(one.model), jax.tree.leaves(other.model), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert one.steps == other.steps


def stop_at(step):
    """A callback that breaks off as Ctrl-C does."""

    def callback(report, model):
        if report.step >= step:
            raise KeyboardInterrupt

    return callback


@pytest.mark.parametrize(
    ("held", "learn_inducing", "precision"),
    [(False, False, "float32"), (True, False, "float64"), (True, True, "float32")],
)
def test_an_interrupted_run_goes_on_to_the_same_model(tmp_path, held, learn_inducing, precision):
    x, y = data()
    options = {"held_out": (x[250:], y[250:])} if held else {}
    settings = Settings(**{**vars(SETTINGS), "learn_inducing": learn_inducing})
    model = start(x, precision=precision)
    whole = train(model, x[:250], y[:250], settings, **options)
    path = tmp_path / "run.checkpoint"
    for step in (1, 40, 130):
        broken = train(
            model, x[:250], y[:250], settings, callback=stop_at(step), checkpoint=path, resume=True, **options
        )
        assert broken.reason == "interrupted"
        assert step <= broken.steps < 400
    resumed = train(model, x[:250], y[:250], settings, checkpoint=path, resume=True, **options)
    assert resumed.reason == "steps"
    assert_same(resumed, whole)
    assert [r.step for r in resumed.history] == sorted({r.step for r in resumed.history})
    scores = [r.score for r in whole.history if r.score is not None]
    assert [r.score for r in resumed.history if r.score is not None] == scores


def test_an_interrupted_run_keeps_the_model_so_far():
    x, y = data()
    broken = train(start(x), x, y, SETTINGS, callback=stop_at(60))
    exact = train(
        start(x), x, y, Settings(**{**vars(SETTINGS), "steps": 400}), callback=lambda r, _: r.step >= broken.steps
    )
    assert_same(broken, exact)


CODE = """
import os, signal, sys
sys.path.insert(0, {folder!r})
from test_checkpoints import SETTINGS, data, start
from swsgp import train
from swsgp.fit import checkpoints
checkpoints._EVERY = 0.0
x, y = data()
def callback(report, model):
    if report.step >= 100:
        os.kill(os.getpid(), signal.SIGKILL)
train(start(x), x, y, SETTINGS, callback=callback, checkpoint={path!r})
"""


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path):
    x, y = data()
    path = tmp_path / "run.checkpoint"
    code = CODE.format(folder=os.path.dirname(__file__), path=str(path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert os.listdir(tmp_path) == [path.name]
    reports = []
    resumed = train(
        start(x), x, y, SETTINGS, checkpoint=path, resume=True, callback=lambda r, _: reports.append(r.step)
    )
    assert reports[0] > 100
    assert_same(resumed, train(start(x), x, y, SETTINGS))


def test_checkpoints_are_written_as_time_passes(tmp_path, monkeypatch):
    x, y = data()
    path = tmp_path / "run.checkpoint"
    train(start(x), x, y, SETTINGS, checkpoint=path)
    assert not path.exists()
    monkeypatch.setattr(checkpoints, "_EVERY", 0.0)
    train(start(x), x, y, SETTINGS, checkpoint=path)
    assert path.exists()


@pytest.mark.parametrize("change", ["data", "settings", "model"])
def test_a_checkpoint_of_another_run_is_refused(tmp_path, change):
    x, y = data()
    path = tmp_path / "run.checkpoint"
    train(start(x), x, y, SETTINGS, callback=stop_at(1), checkpoint=path)
    settings = Settings(**{**vars(SETTINGS), "seed": 1}) if change == "settings" else SETTINGS
    other = start(x, seed=1) if change == "model" else start(x)
    with pytest.raises(SettingError, match="is of another run"):
        train(other, x, y + (change == "data"), settings, checkpoint=path, resume=True)


def test_without_a_checkpoint_a_run_starts_anew(tmp_path):
    x, y = data()
    settings = Settings(**{**vars(SETTINGS), "steps": 20})
    assert train(start(x), x, y, settings, checkpoint=tmp_path / "none", resume=True).steps == 20


def test_a_file_that_is_no_checkpoint_is_refused_and_left_alone(tmp_path):
    x, y = data()
    path = tmp_path / "notes.txt"
    path.write_text("do not touch")
    for resume in (False, True):
        with pytest.raises(ModelFileError, match="not a whole file of swsgp"):
            train(start(x), x, y, SETTINGS, checkpoint=path, resume=resume)
    assert path.read_text() == "do not touch"
