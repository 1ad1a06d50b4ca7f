"""What scikit-learn asks of every estimator."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from swsgp import Linear, Matern32, SWSGPClassifier, SWSGPRegressor
from swsgp.estimators.base import SWSGPBase

SMALL = {"n_inducing": 16, "batch_size": 16, "max_steps": 30, "early_stopping": False}


# No check is excepted. One skips itself where the environment variable SCIPY_ARRAY_API is not set. Fewer steps and a
# plainer kernel than by default make them faster, and change nothing that they look at.
@parametrize_with_checks([SWSGPRegressor(max_steps=100, kernel="rbf"), SWSGPClassifier(max_steps=100, kernel="rbf")])
def test_scikit_learn_is_content(estimator, check):
    check(estimator)


@pytest.fixture
def data(rng):
    X = rng.normal(size=(60, 2))
    return X, X[:, 0] + 0.1 * rng.normal(size=60)


def test_a_search_over_parameters_and_cross_validation_work(data):
    X, y = data
    search = GridSearchCV(SWSGPRegressor(**SMALL), {"n_neighbors": [2, 4]}, cv=2).fit(X, y)
    assert search.best_params_["n_neighbors"] in (2, 4)
    labels = np.where(y > 0, "up", "down")
    assert cross_val_score(SWSGPClassifier(**SMALL), X, labels, cv=2).shape == (2,)


def test_a_pipeline_with_table_output_keeps_the_names_of_columns(data):
    X, y = data
    X = pd.DataFrame(X, columns=["a", "b"])
    pipeline = make_pipeline(StandardScaler(), SWSGPRegressor(**SMALL)).set_output(transform="pandas").fit(X, y)
    assert list(pipeline[-1].feature_names_in_) == ["a", "b"]
    assert pipeline.predict(X).shape == (60,)


def test_a_clone_has_the_parameters_and_nothing_else(data):
    kernel = Matern32(np.ones(2)) + Linear()
    model = SWSGPRegressor(kernel=kernel, **SMALL).fit(*data)
    copy = clone(model)
    assert not hasattr(copy, "fitted_")
    assert type(copy.kernel) is type(kernel)
    copy.fit(*data)
    np.testing.assert_array_equal(copy.predict(data[0]), model.predict(data[0]))


def test_both_estimators_have_the_same_parameters():
    assert SWSGPRegressor().get_params() == SWSGPClassifier().get_params()
    assert issubclass(SWSGPClassifier, SWSGPBase)
