"""Bad input gives a message that says what to do, never a wrong answer, and never hurts a model that is there."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from houses import FAST, frame
from scipy import sparse

from swsgp import SWSGPClassifier, SWSGPRegressor
from swsgp.errors import DataError, SettingError

QUICK = {**FAST, "batch_size": 16, "max_steps": 20}
GOOD = np.random.default_rng(0).normal(size=(40, 3))
TARGET = GOOD[:, 0] + 0.1 * GOOD[:, 1]
BOTH = pytest.mark.parametrize("estimator", [SWSGPRegressor, SWSGPClassifier])


def labels_for(estimator, y=TARGET):
    return np.where(y > 0, "a", "b") if estimator is SWSGPClassifier else y


def spoiled(value):
    bad = GOOD.copy()
    bad[3, 1] = value
    return bad


@BOTH
@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.empty((0, 3)), "0 sample"),
        (np.empty((40, 0)), "0 feature"),
        (spoiled(np.nan), r"missing \(NaN\) in column 'x1' \(1\)"),
        (spoiled(np.inf), r"infinite in column 'x1' \(1\)"),
        (pd.DataFrame(spoiled(np.nan), columns=["a", "b", "c"]), r"missing \(NaN\) in column 'b' \(1\)"),
        (pd.DataFrame({"a": ["x"] * 40, "b": [None] * 40}), "'b' has no values"),
        (np.array([["x", "y"]] * 40), "could not convert string"),
        (GOOD[:, 0], "1D array"),
        (pd.DataFrame({"a": [1.0, 2.0]})[:0], "at least one row"),
    ],
)
def test_inputs_that_cannot_be_learned_from(estimator, X, message):
    with pytest.raises(ValueError, match=message):
        estimator(**QUICK).fit(X, labels_for(estimator))


@BOTH
def test_a_sparse_matrix_is_refused(estimator):
    with pytest.raises(TypeError, match="Sparse data was passed"):
        estimator(**QUICK).fit(sparse.csr_array(GOOD), labels_for(estimator))


@BOTH
def test_one_row_is_too_few(estimator):
    with pytest.raises(DataError, match="at least two rows"):
        estimator().fit(GOOD[:1], labels_for(estimator)[:1])


@BOTH
def test_target_and_inputs_of_different_lengths_are_refused(estimator):
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        estimator(**QUICK).fit(GOOD, labels_for(estimator)[:-1])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.where(TARGET > 0, "a", "b"), "the target must be numbers.*SWSGPClassifier"),
        (np.where(TARGET > 0, TARGET, np.nan), "target must be finite, got .* NaN"),
        (np.where(TARGET > 0, TARGET, np.inf), "target must be finite"),
    ],
)
def test_numbers_that_cannot_be_learned(y, message):
    with pytest.raises(DataError, match=message):
        SWSGPRegressor(**QUICK).fit(GOOD, y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.full(40, "only"), "one class only"),
        (TARGET, "Unknown label type"),
        (np.where(TARGET > 0, "a", None), "missing labels"),
        (np.array(["a", 1] * 20, dtype=object), "of one type|mix of label"),
    ],
)
def test_labels_that_cannot_be_learned(y, message):
    with pytest.raises((ValueError, TypeError), match=message):
        SWSGPClassifier(**QUICK).fit(GOOD, y)


def test_counts_must_be_counts():
    with pytest.raises(DataError, match="Poisson needs counts"):
        SWSGPRegressor(likelihood="poisson", **QUICK).fit(GOOD, TARGET)


def test_constant_columns_a_constant_target_and_duplicate_columns_are_no_trouble():
    X = np.column_stack([GOOD[:, 0], GOOD[:, 0], np.full(40, 3.0)])
    model = SWSGPRegressor(**QUICK).fit(X, np.full(40, 5.0))
    np.testing.assert_allclose(model.predict(X), 5.0, atol=0.5)
    assert np.isfinite(model.evaluate(X, np.full(40, 5.0)).scores["swsgp"]["nll"])


@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_huge_and_tiny_units_give_the_same_model(size):
    plain = SWSGPRegressor(**QUICK).fit(GOOD, TARGET)
    scaled = SWSGPRegressor(**QUICK).fit(GOOD * size, TARGET * size)
    np.testing.assert_allclose(scaled.predict(GOOD * size) / size, plain.predict(GOOD), rtol=1e-3, atol=1e-3)


def test_one_huge_value_is_named_and_one_wild_value_does_not_spoil_the_others():
    with pytest.raises(
        DataError, match="column 'x1' has a value of the size 1e\\+30, more than 1e\\+09 times the spread"
    ):
        SWSGPRegressor(**QUICK).fit(spoiled(1e30), TARGET)
    with pytest.raises(DataError, match="the target has a value of the size 1e\\+30"):
        SWSGPRegressor(**QUICK).fit(GOOD, np.where(np.arange(40) == 3, 1e30, TARGET))
    with pytest.raises(DataError, match="column 'x0' has values of the size 2e\\+160; give it in another unit"):
        SWSGPRegressor(**QUICK).fit(GOOD * 1e160, TARGET)
    wild = spoiled(1e6)
    model = SWSGPRegressor(**{**QUICK, "max_steps": 500}).fit(wild, TARGET)
    others = np.arange(40) != 3
    assert np.corrcoef(model.predict(wild)[others], TARGET[others])[0, 1] > 0.5
    assert np.isfinite(model.predict(wild, return_std=True)).all()
    assert np.isfinite(model.predict(spoiled(1e30), return_std=True)).all()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n_inducing", 0, "n_inducing must be 'auto' or a whole number, 1 or more, got 0"),
        ("n_inducing", 50, "n_inducing must be between 1 and the number of training rows, 40"),
        ("n_neighbors", 41, "n_neighbors must be a whole number between 1 and n_inducing=40, got 41"),
        ("n_landmarks", -1, "n_landmarks must be 'auto' or a whole number, 0 or more, got -1"),
        ("n_landmarks", 41, "n_landmarks must be at most the number of rows, 40, got 41"),
        ("n_neighbors", 2.5, "n_neighbors must be 'auto' or a whole number"),
        ("kernel", "gauss", "kernel must be a covariance or a sum of matern, matern12"),
        ("likelihood", "normal", "likelihood must be"),
        ("covariance", "dense", "must be 'diag' or 'full', got 'dense'"),
        ("active", "none", "active must be 'per-point', 'union' or 'all', got 'none'"),
        ("kl_scale", -1.0, "kl_scale must be 'auto' or a positive number"),
        ("batch_size", "many", "batch_size must be 'auto' or a whole number"),
        ("learning_rate", 0, "learning_rate must be 'auto' or a positive number"),
        ("max_steps", True, "max_steps must be 'auto' or a whole number"),
        ("time_budget", -1.0, "time_budget must be positive"),
        ("early_stopping", "yes", "early_stopping must be 'auto', True or False"),
        ("precision", "float16", "precision must be one of float32, float64"),
        ("missing", "ignore", "missing must be one of error, drop, fill"),
    ],
)
@BOTH
def test_a_bad_parameter_is_named_with_what_it_may_be(estimator, name, value, message):
    with pytest.raises(SettingError, match=message):
        estimator(**{**QUICK, name: value}).fit(GOOD, labels_for(estimator))


@BOTH
def test_predicting_with_other_columns_is_refused(estimator):
    model = estimator(**QUICK).fit(GOOD, labels_for(estimator))
    for bad, message in [
        (GOOD[:, :2], "expecting 3 features"),
        (np.empty((0, 3)), "0 sample"),
        (spoiled(np.nan), "missing"),
        (spoiled(np.inf), "infinite"),
        (GOOD[0], "1D array"),
    ]:
        for method in ("predict", "log_score", "evaluate", "partial_fit", "report"):
            arguments = (bad,) if method == "predict" else (bad, labels_for(estimator))
            with pytest.raises(ValueError, match=message):
                getattr(model, method)(*arguments)


def test_predicting_with_other_named_columns_is_refused(regressor):
    X, y = frame(20)
    methods = [
        lambda table: regressor.predict(table, return_std=True),
        lambda table: regressor.predict_interval(table),
        lambda table: regressor.predict_quantiles(table),
        lambda table: regressor.predict_joint(table),
        lambda table: regressor.sample_y(table),
        lambda table: regressor.score(table, y),
        lambda table: regressor.log_score(table, y),
    ]
    for method in methods:
        with pytest.raises(DataError, match="lacks column 'size'"):
            method(X.drop(columns="size"))
        with pytest.raises(DataError, match="has column 'more'"):
            method(X.assign(more=1))
        with pytest.raises(DataError, match=r"missing \(NaN\) in column 'noise' \(20\)"):
            method(X.assign(noise=np.nan))
        with pytest.raises(DataError, match="'size' must be numbers"):
            method(X.assign(size="big"))


def test_names_on_one_side_only_are_warned_about():
    X = pd.DataFrame(GOOD, columns=["a", "b", "c"])
    named, unnamed = (SWSGPRegressor(**QUICK).fit(table, TARGET) for table in (X, GOOD))
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        np.testing.assert_array_equal(named.predict(GOOD), unnamed.predict(GOOD))
    with pytest.warns(UserWarning, match="was fitted without feature names"):
        np.testing.assert_array_equal(unnamed.predict(X), unnamed.predict(GOOD))


def test_rows_with_missing_values_are_dropped_or_filled_if_asked():
    bad = spoiled(np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dropped = SWSGPRegressor(missing="drop", **QUICK).fit(bad, TARGET)
        filled = SWSGPRegressor(missing="fill", **QUICK).fit(bad, TARGET)
    assert dropped.fitted_.record["rows"] == 39
    assert filled.fitted_.record["rows"] == 40
    with pytest.raises(DataError, match="missing"):
        dropped.predict(bad)
    replaced = bad.copy()
    replaced[3, 1] = np.nanmedian(bad[:, 1])
    np.testing.assert_array_equal(filled.predict(bad), filled.predict(replaced))
    with pytest.raises(DataError, match="every row has a missing value"):
        SWSGPRegressor(missing="drop", **QUICK).fit(np.full((5, 2), np.nan), np.ones(5))
    y = TARGET.copy()
    y[7] = np.nan
    assert SWSGPRegressor(missing="drop", **QUICK).fit(GOOD, y).fitted_.record["rows"] == 39


def test_labels_that_were_not_there_in_training_are_named():
    model = SWSGPClassifier(**QUICK).fit(GOOD, labels_for(SWSGPClassifier))
    with pytest.raises(DataError, match="not there in training: zebra"):
        model.log_score(GOOD, np.where(TARGET > 1, "zebra", "a"))


def test_a_failed_fit_leaves_the_trained_model_as_it_was():
    model = SWSGPRegressor(**QUICK).fit(GOOD, TARGET)
    before = model.predict(GOOD)
    for bad in (spoiled(np.nan), spoiled(np.inf)[:, :2], pd.DataFrame(spoiled(np.nan), columns=["a", "b", "c"])):
        with pytest.raises(DataError):
            model.fit(bad, TARGET)
    np.testing.assert_array_equal(model.predict(GOOD), before)


@pytest.mark.parametrize("levels", [[0.5, 1.0], [0.0], [-0.1], "half", [np.nan]])
def test_quantiles_outside_0_and_1_are_refused(regressor, levels):
    with pytest.raises(ValueError, match=r"between 0 and 1|could not convert"):
        regressor.predict_quantiles(frame(5)[0], levels)


def test_labels_of_other_types_than_those_of_training_are_named(classifier):
    X, _ = frame(10)
    with pytest.raises(DataError, match="not there in training: 1"):
        classifier.log_score(X, np.ones(10))
    with pytest.raises(DataError, match="1 missing labels"):
        classifier.log_score(X, np.array(["dear"] * 9 + [None], dtype=object))
    with pytest.raises(DataError, match="labels must be text, whole numbers, or true and false"):
        SWSGPClassifier(**QUICK).fit(GOOD, np.array(["2026-01-01"] * 20 + ["2026-01-02"] * 20, dtype="datetime64[D]"))


def test_whole_numbers_and_flags_with_holes_stay_what_they_are_when_rows_are_dropped():
    X = pa.table({"a": GOOD[:, 0]})
    for values in ([1, 2], [True, False]):
        y = pa.chunked_array([[None, *(values[i % 2] for i in range(39))]])
        model = SWSGPClassifier(missing="drop", **QUICK).fit(X, y)
        assert model.classes_.tolist() == sorted(values)
        assert model.fitted_.record["rows"] == 39


def test_early_stopping_may_be_numpys_false_and_parameters_numpys_numbers(tmp_path):
    model = SWSGPRegressor(
        **{**QUICK, "early_stopping": np.False_, "n_inducing": np.int64(8)}, max_categories=np.int64(20)
    ).fit(GOOD, TARGET)
    assert model.settings_["n_held_out"] == 0
    model.save(tmp_path / "m.swsgp")
    with pytest.raises(SettingError, match="early_stopping must be"):
        SWSGPRegressor(**{**QUICK, "early_stopping": 0}).fit(GOOD, TARGET)


def test_columns_without_a_value_are_filled_where_that_was_asked_for():
    X = pd.DataFrame({"a": GOOD[:, 0], "g": ["u", "v"] * 20})
    model = SWSGPRegressor(missing="fill", **QUICK).fit(X, TARGET)
    assert np.isfinite(model.predict(pd.DataFrame({"a": [0.1], "g": [None]}))).all()
    assert np.isfinite(model.predict(pd.DataFrame({"a": [None], "g": ["u"]}))).all()
    unnamed = SWSGPRegressor(missing="fill", **QUICK).fit(GOOD, TARGET)
    with pytest.warns(UserWarning, match="has feature names"):
        found = unnamed.predict(pd.DataFrame(spoiled(np.nan), columns=[f"c{j}" for j in range(GOOD.shape[1])]))
    np.testing.assert_array_equal(found, unnamed.predict(spoiled(np.nan)))


def test_tables_that_are_not_there_yet_or_name_a_column_twice_are_refused():
    with pytest.raises(DataError, match=r"collect\(\) it first"):
        SWSGPRegressor(**QUICK).fit(pl.LazyFrame({"a": [1.0, 2.0]}), [1.0, 2.0])
    with pytest.raises(DataError, match="more than one column named 'a'"):
        SWSGPRegressor(**QUICK).fit(pd.DataFrame(GOOD[:, :2], columns=["a", "a"]), TARGET)


def test_partial_fit_drops_rows_with_holes_and_refuses_other_classes(classifier):
    model = SWSGPRegressor(missing="drop", **QUICK).fit(GOOD, TARGET)
    model.partial_fit(spoiled(np.nan), TARGET)
    assert model.fitted_.record["rows"] == 79
    model = SWSGPClassifier(**QUICK).partial_fit(GOOD, TARGET > 0)
    with pytest.raises(SettingError, match="classes must be those of the first call"):
        model.partial_fit(GOOD, TARGET > 0, classes=["a", "b"])
