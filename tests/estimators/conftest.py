"""Small trained models that many tests share; none of them changes one."""

import numpy as np
import pandas as pd
import pytest
from houses import FAST, frame

from swsgp import SWSGPClassifier, SWSGPRegressor


@pytest.fixture(scope="session")
def regressor():
    return SWSGPRegressor(**FAST).fit(*frame())


@pytest.fixture(scope="session")
def classifier():
    X, y = frame()
    return SWSGPClassifier(**FAST).fit(X, pd.Series(np.where(y > 2400, "dear", "cheap"), name="kind"))
