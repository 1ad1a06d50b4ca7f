"""Training on rows that lie on disk, beside training on the same rows in memory."""

import numpy as np
import pytest

from swsgp import Gaussian, Matern52, PerPoint, Predictor, Settings, create, train
from swsgp.data.stores import Store
from swsgp.errors import DataError
from swsgp.fit import loop
from swsgp.fit.loop import train_from
from swsgp.fit.sources import OnDisk


def rows(n=1200, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=(n, 2)).astype("float32")
    return x, (np.sin(3 * x[:, 0]) + x[:, 1] + 0.1 * rng.normal(size=n)).astype("float32")


def stored(folder, x, y, n_parts, precision="float32"):
    blocks = zip(np.array_split(x, 7), np.array_split(y, 7), strict=True)
    return Store.write(folder, blocks, n_parts, precision, 0)


def test_a_store_has_every_row_once_in_parts_of_about_the_same_size(tmp_path):
    x, y = rows()
    store = stored(tmp_path, x, y, 5)
    assert store.n_rows == 1200
    assert np.ptp(store.sizes) <= 1
    parts = [store.part(i) for i in range(5)]
    together = np.concatenate([np.column_stack(part) for part in parts])
    expected = np.column_stack([x, y])
    np.testing.assert_array_equal(together[np.lexsort(together.T)], expected[np.lexsort(expected.T)])
    # Each part is a sample of the table, not a piece of it.
    assert all(np.ptp(part[0][:, 0]) > 3.8 for part in parts)


def test_stores_of_several_processes_hold_the_parts_of_one(tmp_path):
    x, y = rows(1203)
    blocks = [(x[:5], y[:5]), (x[5:5], y[5:5]), (x[5:], y[5:])]
    folders = [tmp_path / name for name in ("whole", "first", "second")]
    for folder in folders:
        folder.mkdir()
    whole, *halves = (
        Store.write(folder, blocks, 3, "float32", 0, 4, own)
        for folder, own in zip(folders, (None, range(2), range(2, 4)), strict=True)
    )
    assert whole.sizes.shape == (3, 4)
    assert np.ptp(whole.sizes) <= 1
    for number in range(3):
        together = [np.concatenate(parts) for parts in zip(*(half.part(number) for half in halves), strict=True)]
        for one, both in zip(whole.part(number), together, strict=True):
            np.testing.assert_array_equal(one, both)
    assert {store.digest for store in (whole, *halves)} == {whole.digest}
    # Row n is in lane n mod 4, and lanes come one after the other.
    part_x = whole.part(0)[0]
    places = [int(np.flatnonzero((x == row).all(axis=1))[0]) % 4 for row in part_x]
    assert places == sorted(places)


def test_every_row_comes_up_once_in_an_epoch_but_for_what_fills_no_batch(tmp_path):
    x, y = rows()
    store = stored(tmp_path, x, y, 4)
    source = OnDisk(store, 32, 3, None)
    n_steps = int((store.sizes // 32).sum())
    seen = []
    for epoch in range(2):
        step, own = epoch * n_steps, []
        while step < (epoch + 1) * n_steps:
            window = source.window(step, 10**9, None, x[:5], print)
            assert window.has(step)
            n = window.stop - step
            own += [np.asarray(window.x)[batch] for batch in source.batches(step, n)]
            step = window.stop
        assert len(own) == n_steps
        assert len(np.unique(np.concatenate(own), axis=0)) == 32 * n_steps
        seen.append(np.concatenate(own))
    assert not np.array_equal(*seen)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_model_trained_from_disk_is_as_good_as_one_trained_in_memory(tmp_path, precision):
    x, y = rows()
    x_test, y_test = rows(500, seed=1)
    model = create(x, Matern52([1.0, 1.0]), Gaussian(), PerPoint(8), n_inducing=100, precision=precision)
    settings = Settings(steps=1500, batch_size=64, learning_rate=0.02)
    in_memory = train(model, x, y, settings)
    on_disk = train_from(model, stored(tmp_path, x, y, 3, precision), settings)
    assert on_disk.steps == 1500
    scores = [np.mean(Predictor(t.model).log_density(x_test, y_test)) for t in (in_memory, on_disk)]
    assert abs(scores[0] - scores[1]) < 0.05
    assert scores[1] > 0.3


def test_with_one_part_and_one_order_both_are_the_same(tmp_path, monkeypatch):
    x, y = rows(320)
    model = create(x, Matern52([1.0, 1.0]), Gaussian(), PerPoint(8), n_inducing=50, precision="float64")
    store = stored(tmp_path, x, y, 1, "float64")
    settings = Settings(steps=200, batch_size=32)
    on_disk = train_from(model, store, settings)
    in_order = OnDisk(store, 32, 0, 8)
    monkeypatch.setattr("swsgp.fit.sources.RowStream.batches", lambda self, first, n: in_order_batches(first, n))

    def in_order_batches(first, n):
        return np.concatenate([in_order.batches(step, 1) for step in range(first, first + n)])

    in_memory = train(model, *store.part(0), settings)
    np.testing.assert_allclose(in_memory.model.variational.mean, on_disk.model.variational.mean, rtol=1e-9, atol=1e-12)


def test_neighbours_are_kept_beside_their_part_until_the_metric_changes(tmp_path, monkeypatch):
    x, y = rows()
    store = stored(tmp_path, x, y, 2)
    searched = []
    keep = store.keep
    monkeypatch.setattr(store, "keep", lambda part, found: searched.append(part) or keep(part, found))
    source = OnDisk(store, 64, 0, 4)
    for stop in (1000, 2000):
        step = 0
        while step < 4 * (store.n_rows // 64):
            window = source.window(step, stop, Matern52([1.0, 1.0]), x[:50], print)
            step = window.stop
        source._thread.submit(lambda: None).result()
    assert sorted(searched) == [0, 0, 1, 1]


@pytest.mark.parametrize("harm", ["gone", "cut"])
def test_a_part_that_is_gone_or_cut_is_named(tmp_path, harm):
    x, y = rows()
    store = stored(tmp_path, x, y, 2)
    file = tmp_path / "part-00001.rows"
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:100])
    model = create(x, Matern52([1.0, 1.0]), Gaussian(), PerPoint(8), n_inducing=50)
    with pytest.raises(DataError, match="part-00001"):
        train_from(model, store, Settings(steps=100, batch_size=64))


def test_a_run_from_disk_that_was_interrupted_goes_on_to_the_same_model(tmp_path):
    x, y = rows()
    model = create(x, Matern52([1.0, 1.0]), Gaussian(), PerPoint(8), n_inducing=50, precision="float64")
    settings = Settings(steps=300, batch_size=64)
    (tmp_path / "a").mkdir()
    store = stored(tmp_path / "a", x, y, 3, "float64")
    whole = train_from(model, store, settings)
    file = tmp_path / "run.checkpoint"
    original = loop._Run._steps

    def steps(self, start, n):
        if self.now.step >= 150:
            self.checkpoints.save(vars(self.snapshot), self.history)
            raise InterruptedError
        return original(self, start, n)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop._Run, "_steps", steps)
        with pytest.raises(InterruptedError):
            train_from(model, store, settings, checkpoint=file)
    resumed = train_from(model, store, settings, checkpoint=file, resume=True)
    assert resumed.steps == 300
    np.testing.assert_array_equal(resumed.model.variational.mean, whole.model.variational.mean)
