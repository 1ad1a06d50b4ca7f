"""What trained estimators say: in the user's units, with names, and consistent with each other."""

import copy
import pickle
import subprocess

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from houses import FAST, frame
from scipy import stats

import swsgp
from swsgp import SWSGPClassifier, SWSGPRegressor, serialization
from swsgp.errors import DataError, ModelFileError, SettingError

TEST = frame(200, seed=1)


def test_a_model_explains_what_can_be_explained(regressor, classifier):
    X, y = TEST
    assert regressor.score(X, y) > 0.95
    assert classifier.score(X, np.where(y > 2400, "dear", "cheap")) > 0.9


def test_intervals_cover_about_what_they_say(regressor):
    X, y = TEST
    for coverage in (0.5, 0.95):
        lower, upper = regressor.predict_interval(X, coverage)
        assert abs(np.mean((lower < y) & (y < upper)) - coverage) < 0.15


def test_std_interval_quantiles_and_log_score_say_the_same(regressor):
    X, y = TEST
    mean, std = regressor.predict(X, return_std=True)
    lower, upper = regressor.predict_interval(X, 0.9)
    np.testing.assert_allclose(lower, stats.norm.ppf(0.05, mean, std), rtol=1e-6)
    np.testing.assert_allclose(upper, stats.norm.ppf(0.95, mean, std), rtol=1e-6)
    np.testing.assert_allclose(regressor.predict_quantiles(X, [0.5])[:, 0], mean, rtol=1e-9)
    np.testing.assert_allclose(regressor.log_score(X, y), stats.norm.logpdf(y, mean, std).mean(), rtol=1e-6)
    scores = regressor.evaluate(X, y).scores["swsgp"]
    np.testing.assert_allclose(scores["nll"], -regressor.log_score(X, y), rtol=1e-6)


@pytest.mark.parametrize("likelihood", ["student-t", "poisson"])
def test_densities_of_other_likelihoods_sum_to_one_in_the_users_units(rng, likelihood):
    X = rng.uniform(-1, 1, size=(200, 1))
    y = rng.poisson(np.exp(2 + X[:, 0])).astype(float)
    y = y if likelihood == "poisson" else 50 * y
    model = SWSGPRegressor(likelihood=likelihood, **FAST).fit(X, y)
    point = X[:1]
    mean, std = (value[0] for value in model.predict(point, return_std=True))
    if likelihood == "poisson":
        grid, width = np.arange(0.0, 200.0), 1.0
    else:
        grid, width = np.linspace(mean - 200 * std, mean + 200 * std, 40_001), std / 100
    density = np.exp(model.fitted_.log_density(np.repeat(point, len(grid), 0), grid))
    np.testing.assert_allclose(density.sum() * width, 1.0, atol=2e-3)
    np.testing.assert_allclose((density * grid).sum() * width, mean, rtol=0.01)
    lower, upper = model.predict_interval(X)
    assert 0.85 < np.mean((lower <= y) & (y <= upper)) <= 1.0
    assert np.isfinite(model.evaluate(X, y).scores["swsgp"]["nll"])
    draws = model.sample_y(point, 4000)
    np.testing.assert_allclose(draws.mean(), mean, atol=4 * std / np.sqrt(4000))


def test_the_joint_distribution_has_the_marginals_of_single_rows(regressor):
    X, _ = TEST
    mean, cov = regressor.predict_joint(X[:20])
    single_mean, single_std = regressor.predict(X[:20], return_std=True)
    np.testing.assert_allclose(mean, single_mean, rtol=1e-9)
    np.testing.assert_allclose(np.sqrt(np.diag(cov)), single_std, rtol=1e-6)
    assert np.linalg.eigvalsh(cov).min() > 0


def test_rows_that_are_alike_are_correlated_beyond_the_noise(rng):
    X = rng.uniform(-2, 2, size=(300, 1))
    model = SWSGPRegressor(**FAST).fit(X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=300))
    _, cov = model.predict_joint(np.array([[9.0], [9.01], [-9.0]]))
    noise = float(model.fitted_.model.likelihood.noise) * float(model.fitted_.target.scale) ** 2
    np.testing.assert_allclose(cov[0, 1], cov[0, 0] - noise, rtol=0.05)
    assert abs(cov[0, 2]) < 0.5 * cov[0, 1]


def test_samples_have_the_joint_mean_and_covariance(regressor):
    X = TEST[0][:5]
    mean, cov = regressor.predict_joint(X)
    draws = regressor.sample_y(X, 20_000)
    np.testing.assert_allclose(draws.mean(axis=1), mean, atol=5 * np.sqrt(cov.max() / 20_000))
    np.testing.assert_allclose(np.cov(draws), cov, atol=0.05 * cov.max())
    np.testing.assert_array_equal(regressor.sample_y(X, 3, random_state=5), regressor.sample_y(X, 3, random_state=5))


def test_probabilities_belong_to_their_labels(classifier):
    X, y = TEST
    p = classifier.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(classifier.classes_[p.argmax(axis=1)], classifier.predict(X))
    truth = np.where(y > 2400, "dear", "cheap")
    chosen = p[np.arange(len(y)), (truth == "dear").astype(int)]
    np.testing.assert_allclose(classifier.log_score(X, truth), np.log(chosen).mean(), rtol=1e-5)


@pytest.mark.parametrize("labels", [["a", "b", "c"], [10, 20, 30], [1.0, 2.0, 5.0], [False, True]])
def test_labels_of_any_type_come_back_as_they_were(tmp_path, rng, labels):
    X = rng.normal(size=(90, 1))
    y = np.array(labels)[np.digitize(X[:, 0], np.linspace(-0.5, 0.5, len(labels) - 1))]
    model = SWSGPClassifier(**FAST).fit(X, y)
    assert model.score(X, y) > 0.8
    assert model.predict(X).dtype == y.dtype
    model.save(tmp_path / "m.swsgp")
    np.testing.assert_array_equal(swsgp.load(tmp_path / "m.swsgp").predict(X), model.predict(X))


def test_relevance_says_which_columns_matter(regressor):
    relevance = dict(zip(regressor.feature_names_in_, regressor.relevance_, strict=True))
    assert relevance["flat"] == 0.0
    assert relevance["noise"] < min(relevance["size"], relevance["city"])
    np.testing.assert_allclose(sum(relevance.values()), 1.0)


@pytest.mark.parametrize("kind", ["polars", "arrow", "reordered"])
def test_tables_of_every_kind_predict_the_same(regressor, kind):
    X = TEST[0]
    other = {
        "polars": lambda: pl.from_pandas(X),
        "arrow": lambda: pa.Table.from_pandas(X),
        "reordered": lambda: X[X.columns[::-1]],
    }[kind]()
    np.testing.assert_array_equal(regressor.predict(other), regressor.predict(X))


def test_a_few_wild_values_do_not_squeeze_a_column_flat(rng):
    X = rng.normal(size=(400, 2))
    y = np.sin(2 * X[:, 0])
    wild = X.copy()
    wild[[3, 200], 0] = 7e5, -2e5
    model = SWSGPRegressor(**FAST).fit(wild, y)
    assert model.score(X, y) > 0.95


def test_eeg_with_its_spikes_is_learned(data_folder):
    eeg = swsgp.load_set("eeg")
    order = np.random.default_rng(0).permutation(len(eeg.y))
    spikes = [898, 10386, 11509, 13179]
    rows = np.concatenate([spikes, order[:4000]])
    model = SWSGPClassifier(n_inducing=512, max_steps=128, early_stopping=False).fit(
        eeg.x[rows], eeg.y[rows].astype(int)
    )
    assert model.score(eeg.x[order[4000:6000]], eeg.y[order[4000:6000]].astype(int)) > 0.8


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_saved_model_predicts_bit_for_bit_the_same(tmp_path, precision):
    X, y = frame()
    model = SWSGPRegressor(**{**FAST, "max_steps": 50, "precision": precision}).fit(X, y)
    model.save(tmp_path / "m.swsgp")
    loaded = swsgp.load(tmp_path / "m.swsgp")
    assert loaded.get_params() == model.get_params()
    assert loaded.settings_ == model.settings_
    for other in (loaded, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(other.predict(X, return_std=True), model.predict(X, return_std=True))
        np.testing.assert_array_equal(other.relevance_, model.relevance_)
        assert other.fitted_.model.precision == precision


@pytest.mark.parametrize(
    "options",
    [
        {"covariance": "full", "active": "all", "learn_inducing": True},
        {"active": "union"},
        {"kernel": swsgp.Columns(swsgp.RBF(), [0]) * swsgp.Constant(2.0) + swsgp.Linear(np.ones(6))},
        {"kernel": "rational-quadratic", "likelihood": "student-t"},
    ],
)
def test_every_kind_of_model_is_saved_and_loaded(tmp_path, options):
    X, y = frame()
    model = SWSGPRegressor(**{**FAST, "max_steps": 20, **options}).fit(X, y)
    model.save(tmp_path / "m.swsgp")
    np.testing.assert_array_equal(swsgp.load(tmp_path / "m.swsgp").predict(X[:50]), model.predict(X[:50]))
    np.testing.assert_allclose(model.relevance_.sum(), 1.0)


def test_the_same_seed_gives_the_same_model_and_another_one_another():
    X, y = frame()
    options = {**FAST, "max_steps": 30}
    one, same, other = (SWSGPRegressor(**options, random_state=seed).fit(X, y) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.predict(X), same.predict(X))
    assert not np.array_equal(one.predict(X), other.predict(X))


def test_what_was_chosen_by_the_data_is_reported(rng):
    X = rng.normal(size=(600, 2))
    model = SWSGPRegressor(max_steps=10).fit(X, X[:, 0])
    settings = model.settings_
    assert settings["n_inducing"] == 600
    assert settings["n_neighbors"] == 32
    assert settings["n_held_out"] == 60
    assert settings["max_steps"] == 10
    assert "max_steps" not in model.fitted_.record["chosen"]
    assert "n_inducing" in model.fitted_.record["chosen"]


def test_new_rows_move_a_model_trained_by_gradients_where_they_lie(rng):
    X = rng.uniform(-2, 2, size=(400, 1))
    y = np.sin(2 * X[:, 0]) + 0.05 * rng.normal(size=400)
    right = X[:, 0] > 0
    by_gradients = {"covariance": "full", "n_inducing": 32, "n_neighbors": 8, "max_steps": 1000, "kl_scale": 1.0}
    model = SWSGPRegressor(**by_gradients).partial_fit(X, np.where(right, 0.0, y))
    left_before = model.predict(X[X[:, 0] < -0.5])
    lengthscale = model.fitted_.model.covariance.log_lengthscale
    model.partial_fit(X[right], y[right])
    assert np.sqrt(np.mean((model.predict(X[right]) - y[right]) ** 2)) < 0.2
    np.testing.assert_allclose(model.predict(X[X[:, 0] < -0.5]), left_before, atol=0.1)
    np.testing.assert_array_equal(model.fitted_.model.covariance.log_lengthscale, lengthscale)
    assert model.fitted_.record["rows"] == 400 + right.sum()


def test_a_classifier_that_learns_in_parts_knows_labels_that_come_later(rng):
    X = rng.normal(size=(80, 1))
    y = np.where(X[:, 0] > 0, "up", "down")
    model = SWSGPClassifier(**FAST).partial_fit(X[:40], y[:40], classes=["up", "down", "never"])
    model.partial_fit(X[40:], y[40:])
    assert list(model.classes_) == ["down", "never", "up"]
    assert model.score(X, y) > 0.8


def test_ctrl_c_keeps_the_model_so_far(monkeypatch):
    X, y = frame()
    model = SWSGPRegressor(covariance="full", n_inducing=16, max_steps=100_000)
    import swsgp.fit.loop as loop

    real = loop._Run._steps

    def interrupted(self, start, n_steps):
        if start.step > 100:
            raise KeyboardInterrupt
        return real(self, start, n_steps)

    monkeypatch.setattr(loop._Run, "_steps", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert model.fitted_.record["ended_by"] == "interrupted"
    assert np.isfinite(model.predict(X)).all()


def test_a_report_is_a_page_and_a_file(tmp_path, regressor, classifier):
    X, y = TEST
    page = regressor.report(X, y, tmp_path / "r.html", title="prices <&>")
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == page
    assert "prices &lt;&amp;&gt;" in page
    assert page.count("<svg") == 5
    assert any(city in page for city in ("Oslo", "Bergen", "Tromsø"))
    assert classifier.report(X, np.where(y > 2400, "dear", "cheap")).count("<svg") >= 4
    unnamed = SWSGPRegressor(**{**FAST, "max_steps": 20}).fit(X[["size"]].to_numpy(), y)
    assert "x0" in unnamed.report(X[["size"]].to_numpy(), y)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: data[: len(data) // 2], "not a whole file"),
        (lambda data: data[:4], "not a whole file"),
        (lambda data: b"", "not a whole file"),
        (lambda data: b"\x80\x04cos\nsystem\n", "not a whole file"),
        (
            lambda data: data.replace(b'\\"format\\": 1', b'\\"format\\": 9'),
            "newer than this version's 1; update swsgp",
        ),
        (lambda data: data.replace(b"Gaussian", b"Gaussiam"), "damaged"),
        (lambda data: data.replace(b"n_neighbors", b"n_neighbros"), "damaged"),
        (lambda data: data.replace(b"SWSGPRegressor", b"SWSGPRegressoR"), "damaged"),
    ],
)
def test_a_file_that_is_not_a_whole_model_is_refused(tmp_path, regressor, spoil, message):
    regressor.save(tmp_path / "m.swsgp")
    data = (tmp_path / "m.swsgp").read_bytes()
    assert spoil(data) != data
    (tmp_path / "m.swsgp").write_bytes(spoil(data))
    with pytest.raises(ModelFileError, match=message):
        swsgp.load(tmp_path / "m.swsgp")


def test_a_file_may_name_only_classes_of_this_package(tmp_path, regressor, monkeypatch):
    monkeypatch.setitem(serialization._HOME_OF, "Popen", "subprocess")
    monkeypatch.setattr(subprocess.Popen, "__dataclass_fields__", {}, raising=False)
    (tmp_path / "m.swsgp").write_bytes(serialization.to_bytes(object.__new__(subprocess.Popen), {"kind": "model"}))
    monkeypatch.delitem(serialization._HOME_OF, "Popen")
    with pytest.raises(ModelFileError, match="names a class 'Popen' that swsgp does not have"):
        swsgp.load(tmp_path / "m.swsgp")
    (tmp_path / "m.swsgp").write_bytes(serialization.to_bytes(regressor.fitted_, {"kind": "checkpoint"}))
    with pytest.raises(ModelFileError, match="not a model"):
        swsgp.load(tmp_path / "m.swsgp")


def test_a_damaged_number_in_a_file_is_refused(tmp_path, regressor):
    """Half of the file is arrays; NaN in one of them must not become a prediction."""
    regressor.save(tmp_path / "m.swsgp")
    data = bytearray((tmp_path / "m.swsgp").read_bytes())
    data[-400:] = b"\xff" * 400
    (tmp_path / "m.swsgp").write_bytes(bytes(data))
    with pytest.raises(ModelFileError, match="damaged"):
        swsgp.load(tmp_path / "m.swsgp")


def test_a_model_is_saved_whole_or_not_at_all(tmp_path, regressor):
    with pytest.raises(FileNotFoundError):
        regressor.save(tmp_path / "no" / "m.swsgp")
    with pytest.raises(FileNotFoundError):
        swsgp.load(tmp_path / "none.swsgp")
    with pytest.raises((SettingError, DataError)):
        regressor.predict_interval(TEST[0], 95)


def test_a_single_bit_that_changed_is_noticed(tmp_path, regressor):
    path = tmp_path / "m.swsgp"
    regressor.save(path)
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    for position in (start, start + 1003, len(data) - 1):
        data[position] ^= 4
        path.write_bytes(data)
        with pytest.raises(ModelFileError, match="damaged"):
            swsgp.load(path)
        data[position] ^= 4


def test_the_held_out_score_is_in_the_units_of_the_target():
    X, y = frame(300)
    model = SWSGPRegressor(**{**FAST, "early_stopping": True, "max_steps": 500}).fit(X, y)
    scores = [report[3] for report in model.fitted_.record["history"] if report[3] is not None]
    assert max(scores) == pytest.approx(model.log_score(X, y), abs=0.7)
