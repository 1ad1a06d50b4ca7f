"""Classification for scikit-learn users."""

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets

from swsgp.data.tables import is_missing
from swsgp.errors import DataError, SettingError
from swsgp.estimators.base import SWSGPBase
from swsgp.gp.likelihoods import Bernoulli, Likelihood, Softmax


class SWSGPClassifier(ClassifierMixin, SWSGPBase):
    """Gaussian process classification for large tables, with calibrated probabilities.

    Labels may be of any type, two or many. Inputs are scaled inside, robustly.

    Parameters
    ----------
    likelihood : str
        "auto" ("probit" for two classes, "softmax" for more), or "logit" for two.
    others
        As for `SWSGPRegressor`.

    Attributes
    ----------
    classes_ : array, the labels, in the order of the columns of `predict_proba`
    fitted_ : the trained model with its scaling, columns and training record
    settings_ : dict, what was used where a parameter says "auto", and the seed
    relevance_ : array, share of each input column in how fast the function varies
    n_features_in_, feature_names_in_ : the input columns

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, size=(500, 2))
    >>> y = np.where(X[:, 0] * X[:, 1] > 0, "same", "different")
    >>> model = SWSGPClassifier().fit(X[:400], y[:400])
    >>> bool(model.score(X[400:], y[400:]) > 0.9)
    True
    >>> model.predict_proba(X[400:]).shape
    (100, 2)
    """

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each row."""
        best = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each label, (N, C), in the order of `classes_`; rows sum to 1."""
        x = self._inputs(X)
        return self.fitted_.probabilities(x)

    def _as_numbers(self, y: np.ndarray, labels: np.ndarray) -> np.ndarray:
        _check_labels(y)
        try:
            position = np.minimum(np.searchsorted(labels, y), len(labels) - 1)
            is_new = labels[position] != y
        except TypeError:
            is_new = np.ones(len(y), dtype=bool)
        if is_new.any():
            new = sorted({str(label) for label in y[is_new]})[:5]
            raise DataError(f"the target has labels that were not there in training: {', '.join(new)}.")
        return position.astype(np.float64)

    def _learn_labels(self, y: np.ndarray, classes: Any) -> tuple[np.ndarray, np.ndarray]:
        y = _check_labels(y)
        labels = np.unique(y if classes is None else _check_labels(np.asarray(classes)))
        if len(labels) < 2:
            raise DataError(f"the target has one class only, {labels[0]}; a classifier takes at least two.")
        return self._as_numbers(y, labels), labels

    def _likelihood(self, y: np.ndarray, labels: Any) -> tuple[Likelihood, None]:
        two = len(labels) == 2
        match self.likelihood:
            case "auto":
                return (Bernoulli() if two else Softmax(len(labels))), None
            case "probit" | "logit" if two:
                return Bernoulli(self.likelihood), None
            case "softmax":
                return Softmax(len(labels)), None
        raise SettingError(
            f"likelihood must be 'auto', 'softmax' or, for two classes, 'probit' or 'logit', got {self.likelihood!r} "
            f"for {len(labels)} classes."
        )


def _check_labels(y: np.ndarray) -> np.ndarray:
    """Labels of one type: text, whole numbers, or true and false."""
    n_missing = int(is_missing(y).sum())
    if n_missing:
        raise DataError(f"the target y has {n_missing} missing labels (NaN); drop those rows.")
    if y.dtype.kind == "f":
        assert_all_finite(y, input_name="y")
    if y.dtype.kind == "O":
        kinds = {type(label) for label in y}
        if len(kinds) > 1:
            raise DataError("labels must be of one type, so that they can be sorted; turn them into text.")
        y = y if kinds == {str} else np.array(y.tolist())
    if y.dtype.kind not in "OUbiuf":
        raise DataError("labels must be text, whole numbers, or true and false; turn those of the target into text.")
    try:
        check_classification_targets(y)
    except ValueError as error:
        raise DataError(f"{error} SWSGPRegressor learns numbers (--task regression).") from None
    return y
