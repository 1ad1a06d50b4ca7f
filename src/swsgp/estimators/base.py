"""What the regressor and the classifier share: parameters, training, inputs, files."""

import abc
import warnings
from collections.abc import Iterable
from dataclasses import asdict, replace
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from rich.console import Console
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_array, check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from swsgp.data.batches import split_held_out
from swsgp.data.scaling import Scaling
from swsgp.data.tables import Encoding, as_arrow, as_vector, check_missing, is_complete, is_missing, name_of, numbers
from swsgp.errors import DataError, NumericalError, SettingError
from swsgp.evaluation import Evaluation, evaluate
from swsgp.files import write
from swsgp.fit.defaults import choose
from swsgp.fit.loop import Trained, train
from swsgp.fit.names import active_named, kernel_named, starting_offset
from swsgp.fit.settings import Settings
from swsgp.fit.solved import train_by_solving
from swsgp.fitted import Fitted
from swsgp.gp.likelihoods import Gaussian, Likelihood
from swsgp.gp.model import create
from swsgp.serialization import to_bytes, versions
from swsgp.yardsticks import Yardsticks

# Up to so many inducing inputs start at k-means centres, which are better placed than a subset, and slower to find.
_MAX_CENTRES = 512
# Steps of a `partial_fit`, where their number is left open.
_PARTIAL_STEPS = 1000

# The KL scale as a multiple of M / H where no rows are held out to choose it, for numbers and for classes.
_KL_FACTOR = {True: 0.5, False: 0.2}
# Missing values are looked for later, where columns can be named.
_AS_ARRAY = {"dtype": np.float64, "ensure_all_finite": False}
S = TypeVar("S", bound="SWSGPBase")


class SWSGPBase(BaseEstimator):
    """A model that learns from tables; the regressor and the classifier say what the target is."""

    def __init__(
        self,
        n_inducing: Any = "auto",
        n_neighbors: Any = "auto",
        kernel: Any = "matern52",
        likelihood: Any = "auto",
        covariance: Any = "auto",
        active: Any = "per-point",
        learn_inducing: Any = "auto",
        kl_scale: Any = "auto",
        batch_size: Any = "auto",
        learning_rate: Any = "auto",
        max_steps: Any = "auto",
        time_budget: Any = None,
        early_stopping: Any = "auto",
        precision: Any = "float32",
        preset: Any = "default",
        missing: Any = "error",
        max_categories: Any = 20,
        random_state: Any = 0,
        verbose: Any = False,
    ):
        self.n_inducing = n_inducing
        self.n_neighbors = n_neighbors
        self.kernel = kernel
        self.likelihood = likelihood
        self.covariance = covariance
        self.active = active
        self.learn_inducing = learn_inducing
        self.kl_scale = kl_scale
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_steps = max_steps
        self.time_budget = time_budget
        self.early_stopping = early_stopping
        self.precision = precision
        self.preset = preset
        self.missing = missing
        self.max_categories = max_categories
        self.random_state = random_state
        self.verbose = verbose

    # ------------------------------------------------------------------------------------------------ training

    def fit(self: S, X: Any, y: Any, checkpoint: Any = None, resume: bool = False) -> S:
        """Train on a table of inputs and a target.

        Parameters
        ----------
        X : array (N, D), or a pandas, polars or Arrow table
            Text columns of a table become one column of numbers for each value.
        y : array (N,), or a column of such a table
        checkpoint : path, optional
            A file that takes the state of the training every 20 seconds and when it is interrupted. It stays there.
        resume : bool
            Go on from the checkpoint, if it is there; the result is that of a run without a break.

        Notes
        -----
        Ctrl-C ends training and is raised, but the model so far is kept and can predict.
        """
        start, x, y = self._start(X, y, classes=None)
        return self._train(start, x, y, checkpoint, resume)

    def partial_fit(self: S, X: Any, y: Any, classes: Any = None) -> S:
        """Go on training with new rows.

        The first call is `fit`. Later ones move q(u) towards the new rows, where these lie, and leave it as it is
        elsewhere; columns, scaling, classes and hyper-parameters stay. Rows seen before are not kept.

        Parameters
        ----------
        X, y
            As for `fit`.
        classes : array, optional
            All labels that will ever come, for the first call of a classifier.
        """
        if not hasattr(self, "fitted_"):
            start, x, y = self._start(X, y, classes)
            return self._train(start, x, y, None, False)
        fitted, settings = self.fitted_, self.settings_
        if classes is not None and set(classes) != set(fitted.labels if fitted.labels is not None else ()):
            raise SettingError("classes must be those of the first call; fit a new model for other ones.")
        x, y = self._labelled(*self._without_holes(X, y))
        n_data = fitted.record["rows"] + len(x)
        trained = train(
            fitted.model,
            fitted.inputs.apply(x),
            fitted.scaled(y),
            Settings(
                steps=_PARTIAL_STEPS if self.max_steps == "auto" else self.max_steps,
                batch_size=settings["batch_size"],
                learning_rate=settings["learning_rate"],
                kl_scale=settings["kl_scale"],
                learn_hyperparameters=False,
                time_budget=self.time_budget,
                seed=settings["seed"],
                progress=bool(self.verbose),
            ),
            n_data=n_data,
        )
        return self._take(fitted, trained, n_data)

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

    def _start(self, X: Any, y: Any, classes: Any) -> tuple[Fitted, np.ndarray, np.ndarray]:
        """The model before training, and its data."""
        y_given = y
        x, y, encoding = self._training_data(X, y)
        if len(x) < 2:
            raise DataError("training takes at least two rows, got one sample only (n_samples=1).")
        y, labels = self._learn_labels(y, classes)
        likelihood, target = self._likelihood(y, labels)
        likelihood.check(y)
        asked = self.get_params(deep=False)
        chosen = choose(len(x), asked, isinstance(likelihood, Gaussian))
        seed = seed_of(self.random_state)
        inputs = Scaling.of(x) if encoding is None else Scaling.of(x).except_for(encoding.is_text)
        inputs.check_reach(x, [f"column '{encoding.names[source]}'" for source in encoding.sources])
        if target is not None:
            target.check_reach(y, ["the target"])
        scaled = inputs.apply(x)
        model = create(
            scaled,
            kernel_named(self.kernel, scaled.shape[1]),
            likelihood,
            active_named(self.active, chosen.n_inducing, chosen.n_neighbors),
            n_inducing=chosen.n_inducing,
            covariance_form=chosen.covariance,
            placement="kmeans" if chosen.n_inducing <= _MAX_CENTRES and self.preset != "solve" else "subset",
            offset=starting_offset(likelihood, y),
            precision=self.precision,
            seed=seed,
        )
        yardsticks = (
            Yardsticks.of_numbers(scaled, y, seed)
            if labels is None
            else Yardsticks.of_classes(scaled, y, len(labels), seed)
        )
        plain = {name: value for name, value in asked.items() if name not in ("kernel", "random_state")}
        record = {
            "settings": {**plain, "kernel": str(self.kernel), **asdict(chosen), "seed": seed},
            "chosen": [name for name in asdict(chosen) if asked.get(name, "auto") == "auto"],
            "target": name_of(y_given),
            "rows": len(x),
        }
        return Fitted(model, encoding, inputs, target, labels, yardsticks, scaled.std(axis=0), record), x, y

    def _train(self: S, start: Fitted, x: np.ndarray, y: np.ndarray, checkpoint: Any, resume: bool) -> S:
        chosen = start.record["settings"]
        if self.verbose:
            names = ", ".join(f"{name}={_shown(chosen[name])}" for name in start.record["chosen"])
            Console(stderr=True).print(f"{len(x):,} rows: {names}", highlight=False)
        x, y = start.inputs.apply(x), start.scaled(y)
        if self.preset == "solve":
            return self._solve(start, x, y, checkpoint, resume)
        rows, held = np.arange(len(x)), None
        if chosen["n_held_out"]:
            rows, apart = split_held_out(len(x), chosen["n_held_out"] / len(x), chosen["seed"])
            held = x[apart], y[apart]
        trained = train(
            start.model,
            x[rows],
            y[rows],
            Settings(
                steps=chosen["max_steps"],
                batch_size=chosen["batch_size"],
                learning_rate=chosen["learning_rate"],
                schedule="constant" if self.preset == "paper" else "cosine",
                learn_inducing=chosen["learn_inducing"],
                kl_scale=chosen["kl_scale"],
                time_budget=self.time_budget,
                evaluate_every=max(1, chosen["max_steps"] // 20),
                seed=chosen["seed"],
                progress=bool(self.verbose),
            ),
            held_out=held,
            checkpoint=checkpoint,
            resume=resume,
        )
        if trained.reason == "not finite" and trained.steps == 0:
            raise NumericalError(
                "training came to no finite number; look for extreme values, or use precision='float64'."
            )
        return self._take(start, trained, len(x))

    def _solve(self: S, start: Fitted, x: np.ndarray, y: np.ndarray, checkpoint: Any, resume: bool) -> S:
        chosen = start.record["settings"]
        unit = chosen["n_inducing"] / chosen["n_neighbors"]
        is_given = chosen["kl_scale"] is not None
        solved = train_by_solving(
            start.model,
            x,
            y,
            Settings(
                steps=chosen["max_steps"],
                batch_size=chosen["batch_size"],
                learning_rate=chosen["learning_rate"],
                time_budget=self.time_budget,
                seed=chosen["seed"],
                progress=bool(self.verbose),
            ),
            kl_factor=chosen["kl_scale"] / unit if is_given else _KL_FACTOR[start.labels is None],
            n_held_out=0 if is_given else chosen["n_held_out"],
            checkpoint=checkpoint,
            resume=resume,
        )
        tried = {f"{factor * unit:g}": float(score - np.log(start.unit)) for factor, score in solved.tried.items()}
        settings = chosen | {"kl_scale": max(1.0, solved.kl_factor * unit)}
        record = start.record | {"settings": settings, "held_out_score_of_kl_scale": tried}
        return self._take(replace(start, record=record), solved.trained, len(x))

    def _take(self: S, before: Fitted, trained: Trained, n_rows: int) -> S:
        """Keep a trained model, and how it came about; an interruption goes on from here."""
        shift = np.log(before.unit)
        history = [[r.step, round(r.seconds, 3), r.bound - shift, _plain(r.score, shift)] for r in trained.history]
        record = before.record | {
            "rows": n_rows,
            "steps": trained.steps,
            "seconds": trained.seconds,
            "ended_by": trained.reason,
            "history": _thinned(history),
            "versions": versions(),
        }
        fitted = replace(before, model=trained.model, record=record)
        record["relevance"] = dict(zip(fitted.encoding.names, fitted.relevance.tolist(), strict=True))
        self.keep(fitted)
        if trained.reason == "interrupted":
            raise KeyboardInterrupt
        return self

    def keep(self, fitted: Fitted) -> None:
        """Become the estimator of this trained model; nothing changes before training has succeeded."""
        self.fitted_ = fitted
        self.n_features_in_ = len(fitted.encoding.names)
        if fitted.encoding.is_named:
            self.feature_names_in_ = np.array(fitted.encoding.names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        if fitted.labels is not None:
            self.classes_ = fitted.labels

    # ---------------------------------------------------------------------- what the regressor and classifier say

    @abc.abstractmethod
    def _learn_labels(self, y: np.ndarray, classes: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """The target of training as numbers, and the labels that they stand for, if any."""

    @abc.abstractmethod
    def _as_numbers(self, y: np.ndarray, labels: Any) -> np.ndarray:
        """A target as numbers: positions in the labels, if there are any."""

    @abc.abstractmethod
    def _likelihood(self, y: np.ndarray, labels: Any) -> tuple[Likelihood, Scaling | None]:
        """The likelihood before training, and the scaling of the target, if it has one."""

    # -------------------------------------------------------------------------------------------- what comes in

    def _training_data(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray, Encoding]:
        """Inputs as numbers, the target as it is, and how columns became numbers."""
        check_missing(self.missing)
        if y is None:
            raise DataError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        rows, y = self._without_holes(X, y)
        if isinstance(rows, pa.Table):
            encoding = Encoding.of(rows, self.max_categories, self.missing)
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

    # ------------------------------------------------------------------------------------------- what goes out

    def log_score(self, X: Any, y: Any) -> float:
        """Mean log predictive density of observations in their units, or log-probability of labels."""
        x, y = self._labelled(X, y)
        return float(np.mean(self.fitted_.log_density(x, y)))

    def evaluate(self, X: Any, y: Any) -> Evaluation:
        """All scores on labelled rows, beside those of a linear model and of a constant."""
        return self.evaluate_parts([(X, y)])

    def evaluate_parts(self, parts: Iterable[tuple[Any, Any]]) -> Evaluation:
        """As `evaluate`, for rows that come in parts: pairs of X and y."""
        return evaluate(self.fitted_, (self._labelled(X, y) for X, y in parts))

    def report(self, X: Any, y: Any, path: Any = None, title: str = "Model") -> str:
        """A page of HTML that shows how good the model is on labelled rows; written to `path`, if there is one."""
        # Brings in matplotlib.
        from swsgp.report import facts, page

        evaluation = self.evaluate(X, y)
        text = page(evaluation, facts(self.fitted_, evaluation, X, title))
        if path is not None:
            write(Path(path), text.encode())
        return text

    @property
    def relevance_(self) -> np.ndarray:
        """Share of each input column in how fast the function varies, from the lengthscales; they sum to 1."""
        check_is_fitted(self, "fitted_")
        return np.array(list(self.fitted_.record["relevance"].values()))

    @property
    def settings_(self) -> dict[str, Any]:
        """The settings of the last training, with what was chosen where they said "auto"."""
        check_is_fitted(self, "fitted_")
        return dict(self.fitted_.record["settings"])

    def save(self, path: Any) -> None:
        """Put the model in one file, whole or not at all; `swsgp.load` reads it."""
        check_is_fitted(self, "fitted_")
        parameters = self.get_params(deep=False) | {"random_state": self.settings_["seed"]}
        content = {"fitted": self.fitted_, "parameters": parameters}
        header = {"kind": "model", "estimator": type(self).__name__, "record": self.fitted_.record}
        write(Path(path), to_bytes(content, header))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing != "error"
        return tags


def seed_of(random_state: Any) -> int:
    source = check_random_state(random_state)
    return int(random_state) if isinstance(random_state, Integral) else int(source.randint(2**31 - 1))


def _shown(value: Any) -> str:
    return "by held-out rows" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _plain(score: float | None, shift: float) -> float | None:
    return None if score is None or not np.isfinite(score) else float(score - shift)


def _thinned(history: list[list[Any]]) -> list[list[Any]]:
    """At most about a thousand reports, with all that have a held-out score."""
    every = -(-len(history) // 1000)
    return [report for i, report in enumerate(history) if i % every == 0 or report[3] is not None]


def _is_plain(X: Any, n_columns: int) -> bool:
    return type(X) is np.ndarray and X.dtype == np.float64 and X.ndim == 2 and len(X) > 0 and X.shape[1] == n_columns
