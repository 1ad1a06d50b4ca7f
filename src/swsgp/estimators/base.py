"""What the regressor and the classifier share: parameters, training, inputs, files."""

import abc
from collections.abc import Iterable
from dataclasses import asdict, replace
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted

from swsgp import processes
from swsgp.data.overview import Overview
from swsgp.data.scaling import Scaling
from swsgp.data.tables import name_of
from swsgp.errors import DataError, SettingError
from swsgp.estimators.inputs import LearnsFromTables
from swsgp.estimators.training import Outcome, climb, climb_on, fit_other_system, solve, solve_on
from swsgp.evaluation import Evaluation, evaluate, score_parts
from swsgp.files import write
from swsgp.fit.defaults import OTHER_SYSTEMS, UNUSED_IN_OTHER_SYSTEMS, choose, for_sample
from swsgp.fit.names import active_named, kernel_named, starting_offset
from swsgp.fitted import Fitted
from swsgp.gp.active import PerPoint
from swsgp.gp.likelihoods import Gaussian, Likelihood
from swsgp.gp.model import create
from swsgp.serialization import to_bytes, versions
from swsgp.shapes import check_precision
from swsgp.yardsticks import Yardsticks

# Up to so many inducing inputs start at k-means centres, which are better placed than a subset, and slower to find.
_MAX_CENTRES = 512
S = TypeVar("S", bound="SWSGPBase")


class SWSGPBase(LearnsFromTables):
    """A model that learns from tables; the regressor and the classifier say what the target is."""

    def __init__(
        self,
        model: Any = "swsgp",
        n_inducing: Any = "auto",
        n_neighbors: Any = "auto",
        n_landmarks: Any = "auto",
        kernel: Any = "auto",
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
        self.model = model
        self.n_inducing = n_inducing
        self.n_neighbors = n_neighbors
        self.n_landmarks = n_landmarks
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
            A file that takes the state of the training every 20 seconds, when hyper-parameters are learned, and when it
            is interrupted. It stays there.
        resume : bool
            Go on from the checkpoint, if it is there; the result is that of a run without a break.

        Notes
        -----
        Ctrl-C ends training and is raised, but the model so far is kept and can predict, if it has inducing points.
        """
        start, x, y = self._start(X, y, classes=None)
        return self._train(start, x, y, checkpoint, resume)

    def fit_file(
        self: S,
        table: Any,
        target: str,
        columns: Any = None,
        max_memory: Any = "1GB",
        checkpoint: Any = None,
        resume: bool = False,
        workspace: Any = None,
    ) -> S:
        """Train on a table in Parquet or Arrow files, which may be larger than memory.

        Parameters
        ----------
        table : path of a file or of a folder of files, or the address of either in an object store
        target : str, the column to predict
        columns : list of str, the input columns; all others if not given
        max_memory : str or int
            The most memory for rows, as "500MB" or in bytes; the model and the program itself come on top.
        checkpoint, resume
            As for `fit`.
        workspace : path, optional
            A folder, made if it is not there, in which a new one takes the rows as numbers while training lasts, and
            their neighbours: four bytes each. By default where temporary files go.
        """
        # Only this needs it.
        from swsgp.estimators.from_files import fit_file

        fit_file(self, table, target, columns, max_memory, checkpoint, resume, workspace)
        return self

    def partial_fit(self: S, X: Any, y: Any, classes: Any = None) -> S:
        """Go on training with new rows.

        The first call is `fit`. Later ones solve for q(u) with all rows seen so far, the new ones included; nothing is
        forgotten, and the order of the rows makes no difference. Columns, scaling, classes and hyper-parameters stay.
        Models that are trained by stochastic gradients do not keep their rows: there q(u) moves towards the new ones,
        where these lie.

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
        fitted = self.fitted_
        if classes is not None and set(classes) != set(fitted.labels if fitted.labels is not None else ()):
            raise SettingError("classes must be those of the first call; fit a new model for other ones.")
        kind = fitted.record["settings"]["model"]
        if kind in OTHER_SYSTEMS:
            raise SettingError(f"model={kind!r} cannot learn more rows; fit a new one on all rows.")
        if kind != self.model:
            raise SettingError(f"this is a fitted model={kind!r}, not {self.model!r}; fit a new one for another.")
        x, y = self._labelled(*self._without_holes(X, y))
        x, y = fitted.inputs.apply(x), fitted.scaled(y)
        n_rows = fitted.record["rows"] + len(x)
        with processes.interruptible():
            if fitted.record["settings"]["solves"]:
                sizes = choose(n_rows, self.get_params(deep=False), isinstance(fitted.model.likelihood, Gaussian))
                done = solve_on(fitted, x, y, sizes)
            else:
                done = climb_on(fitted, x, y, self.max_steps, bool(self.verbose))
        return self._take(done, n_rows)

    def _start(
        self, X: Any, y: Any, classes: Any, overview: Overview | None = None, seed: int | None = None
    ) -> tuple[Fitted, np.ndarray, np.ndarray]:
        """The model before training, and its data; with an overview, these are a sample of a longer table."""
        y_given = y
        x, y, encoding = self._training_data(X, y, None if overview is None else overview.categories)
        n_rows = len(x) if overview is None else overview.n_rows
        if len(x) < 2:
            raise DataError("training takes at least two rows, got one sample only (n_samples=1).")
        y, labels = self._learn_labels(y, classes)
        likelihood, target = self._likelihood(y, labels)
        likelihood.check(y)
        asked = self.get_params(deep=False)
        check_precision(self.precision)
        chosen = choose(n_rows, asked, isinstance(likelihood, Gaussian))
        if overview is not None:
            chosen = for_sample(chosen, asked, len(x))
        seed = seed_of(self.random_state) if seed is None else seed
        inputs = Scaling.of(x).except_for(encoding.is_text)
        inputs.check_reach(x, [f"column '{encoding.names[source]}'" for source in encoding.sources])
        if target is not None:
            target.check_reach(y, ["the target"])
        scaled = inputs.apply(x)
        kernel = self.kernel
        is_auto = isinstance(kernel, str) and kernel == "auto"
        if self.model == "dgp-rbf" and not is_auto:
            raise SettingError("model='dgp-rbf' has a kernel of its own; leave kernel out.")
        if is_auto:
            kernel = "rbf" if self.model == "dgp-rbf" else "matern" if chosen.solves else "matern52"
        is_other = self.model in OTHER_SYSTEMS
        # Exact inference takes all digits.
        precision = "float64" if is_other and self.model != "dgp-rbf" else self.precision
        # The paper's SVGP-M-H.
        predicts_from_nearest = self.model == "svgp" and self.n_neighbors != "auto"
        model = create(
            scaled,
            kernel_named(kernel, scaled.shape[1]),
            likelihood,
            active_named(chosen.active, chosen.n_inducing, chosen.n_neighbors),
            active_prediction=PerPoint(chosen.n_neighbors) if predicts_from_nearest else None,
            # Another system takes from this model its covariance and likelihood only.
            n_inducing=1 if is_other else chosen.n_inducing,
            covariance_form=chosen.covariance,
            placement="subset" if chosen.n_inducing > _MAX_CENTRES or chosen.solves or is_other else "kmeans",
            offset=starting_offset(likelihood, y),
            precision=precision,
            seed=seed,
        )
        yardsticks = (
            Yardsticks.of_numbers(scaled, y, seed)
            if labels is None
            else Yardsticks.of_classes(scaled, y, len(labels), seed)
        )
        unused = {"kernel", "random_state"}
        if is_other:
            unused |= {name for name in UNUSED_IN_OTHER_SYSTEMS if name not in OTHER_SYSTEMS[self.model]}
        plain = {name: value for name, value in (asked | asdict(chosen)).items() if name not in unused}
        settings = {**plain, "kernel": str(kernel), "precision": precision, "seed": seed}
        same = settings | {"verbose": None, "swsgp": versions()["swsgp"]}
        processes.check_same("the settings", repr(sorted(same.items())))
        processes.check_same("the table", repr(encoding.names), x, y)
        record = {
            "settings": settings,
            "chosen": [
                name for name in OTHER_SYSTEMS.get(self.model, asdict(chosen)) if asked.get(name, "auto") == "auto"
            ],
            "target": name_of(y_given),
            "rows": n_rows,
        }
        return Fitted(model, encoding, inputs, target, labels, yardsticks, scaled.std(axis=0), None, record), x, y

    def _train(self: S, start: Fitted, x: np.ndarray, y: np.ndarray, checkpoint: Any, resume: bool) -> S:
        chosen = start.record["settings"]
        if self.verbose and processes.is_first():
            names = ", ".join(f"{name}={_shown(chosen[name])}" for name in start.record["chosen"])
            Console(stderr=True).print(f"{len(x):,} rows: {names}", highlight=False)
        x, y = start.inputs.apply(x), start.scaled(y)
        processes.check_same("the settings", repr((checkpoint is not None, resume)))
        with processes.interruptible():
            if chosen["model"] in OTHER_SYSTEMS:
                done = fit_other_system(start, x, y, checkpoint, resume, bool(self.verbose))
            elif chosen["solves"]:
                done = solve(start, x, y, checkpoint, resume, bool(self.verbose))
            else:
                done = climb(start, x, y, checkpoint, resume, bool(self.verbose))
        return self._take(done, len(x))

    def _take(self: S, done: Outcome, n_rows: int) -> S:
        """Keep a trained model, and how it came about; an interruption goes on from here."""
        shift = np.log(done.fitted.unit)
        history = [[r.step, round(r.seconds, 3), r.bound - shift, _plain(r.score, shift)] for r in done.history]
        record = done.fitted.record | {
            "rows": n_rows,
            "steps": done.steps,
            "seconds": done.seconds,
            "ended_by": done.reason,
            "history": _thinned(history),
            "versions": versions(),
        }
        fitted = replace(done.fitted, record=record)
        record["relevance"] = dict(zip(fitted.encoding.names, fitted.relevance.tolist(), strict=True))
        self.keep(fitted)
        if done.reason == "interrupted":
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
    def _likelihood(self, y: np.ndarray, labels: Any) -> tuple[Likelihood, Scaling | None]:
        """The likelihood before training, and the scaling of the target, if it has one."""

    # ------------------------------------------------------------------------------------------- what goes out

    def log_score(self, X: Any, y: Any) -> float:
        """Mean log predictive density of observations in their units, or log-probability of labels."""
        x, y = self._labelled(X, y)
        return float(np.mean(self.fitted_.log_density(x, y)))

    def evaluate(self, X: Any, y: Any) -> Evaluation:
        """All scores on labelled rows, beside those of a linear model and of a constant."""
        return evaluate(self.fitted_, *self._labelled(X, y))

    def score_parts(self, parts: Iterable[tuple[Any, Any]]) -> dict[str, dict[str, float]]:
        """The scores of `evaluate` for rows that come in parts, pairs of X and y, none of which is kept.

        They are those of all rows together, but for the AUC, which is close.
        """
        return score_parts(self.fitted_, (self._labelled(X, y) for X, y in parts))

    def report(self, X: Any, y: Any, path: Any = None, title: str = "Model") -> str:
        """A page of HTML that shows how good the model is on labelled rows; written to `path`, if there is one."""
        # Brings in matplotlib.
        from swsgp.facts import facts
        from swsgp.report import page

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
    seed = int(random_state) if isinstance(random_state, Integral) else int(source.randint(2**31 - 1))
    return int(processes.agreed(seed))


def _shown(value: Any) -> str:
    return "by held-out rows" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _plain(score: float | None, shift: float) -> float | None:
    return None if score is None or not np.isfinite(score) else float(score - shift)


def _thinned(history: list[list[Any]]) -> list[list[Any]]:
    """At most about a thousand reports, with all that have a held-out score."""
    every = -(-len(history) // 1000)
    return [report for i, report in enumerate(history) if i % every == 0 or report[3] is not None]
