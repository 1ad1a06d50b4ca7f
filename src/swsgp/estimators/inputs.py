"""How what a user gives becomes arrays of numbers."""

import abc
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from swsgp.data.tables import Encoding, as_arrow, as_vector, check_missing, is_complete, is_missing, numbers
from swsgp.errors import DataError
from swsgp.fitted import Fitted

# Missing values are looked for later, where columns can be named.
_AS_ARRAY = {"dtype": np.float64, "ensure_all_finite": False}


class LearnsFromTables(BaseEstimator):
    """An estimator that takes NumPy, pandas, polars and Arrow tables."""

    missing: Any
    max_categories: Any
    fitted_: Fitted
    n_features_in_: int

    @abc.abstractmethod
    def _as_numbers(self, y: np.ndarray, labels: Any) -> np.ndarray:
        """A target as numbers: positions in the labels, if there are any."""

    def _without_holes(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Rows for training, without those that miss a value if that was asked for."""
        rows: Any = as_arrow(X)
        if rows is None:
            rows = check_array(X, estimator=self, input_name="X", **_AS_ARRAY)
        elif 0 in rows.shape:
            raise DataError(f"X must have at least one row and one column, got shape {rows.shape}.")
        y = column_or_1d(as_vector(y), warn=True)
        check_consistent_length(rows, y)
        if self.missing == "drop":
            keep = is_complete(rows) & ~is_missing(y)
            if not keep.any():
                raise DataError("every row has a missing value; leave out the emptiest columns, or use missing='fill'.")
            rows, y = rows.filter(keep) if isinstance(rows, pa.Table) else rows[keep], y[keep]
        return rows, y

    def _training_data(
        self, X: Any, y: Any, known: dict[str, pa.ChunkedArray] | None = None
    ) -> tuple[np.ndarray, np.ndarray, Encoding]:
        """Inputs as numbers, the target as it is, and how columns became numbers."""
        check_missing(self.missing)
        if y is None:
            raise DataError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        rows, y = self._without_holes(X, y)
        if isinstance(rows, pa.Table):
            encoding = Encoding.of(rows, self.max_categories, self.missing, known)
            return encoding.apply(rows), y, encoding
        encoding = Encoding.of_array(rows, self.missing)
        return encoding.apply_array(rows), y, encoding

    def _inputs(self, X: Any) -> np.ndarray:
        """Inputs of a prediction as numbers."""
        # scikit-learn's checks take as long as predicting a row; they are for what is not plainly right.
        if not hasattr(self, "fitted_"):
            check_is_fitted(self, "fitted_")
        encoding = self.fitted_.encoding
        if not encoding.is_named and _is_plain(X, self.n_features_in_):
            return encoding.apply_array(X)
        table = as_arrow(X)
        if table is None:
            # Says if there are names on one side only, or another number of columns.
            return encoding.apply_array(validate_data(self, X, reset=False, **_AS_ARRAY))
        if len(table) == 0:
            raise DataError("X must have at least one row, got none.")
        if encoding.is_named:
            return encoding.apply(table)
        warnings.warn(f"X has feature names, but {type(self).__name__} was fitted without feature names", stacklevel=3)
        return encoding.apply_array(validate_data(self, numbers(table), reset=False, **_AS_ARRAY))

    def _labelled(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and target of rows to be learned or scored, as numbers."""
        x = self._inputs(X)
        y = self._as_numbers(column_or_1d(as_vector(y), warn=True), self.fitted_.labels)
        check_consistent_length(x, y)
        return x, y


def _is_plain(X: Any, n_columns: int) -> bool:
    return type(X) is np.ndarray and X.dtype == np.float64 and X.ndim == 2 and len(X) > 0 and X.shape[1] == n_columns
