"""A model and how good its predictions are, as one HTML page that needs nothing else."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources

import numpy as np

from swsgp import __version__
from swsgp.evaluation import LINEAR, ClassEvaluation, Evaluation, RegressionEvaluation
from swsgp.facts import MOST_ROWS, Facts, duration
from swsgp.plots import (
    MOST_CURVES,
    MOST_POINTS,
    coverage_against_level,
    observed_against_predicted,
    position_histogram,
    probability_histogram,
    reliability,
    residuals_against_predicted,
    roc,
    svg,
    training_curve,
)

_STYLE = resources.files("swsgp").joinpath("report.css").read_text(encoding="utf-8")
MOST_COLUMNS = 8  # beside them
MOST_RELEVANCES = 20
MOST_CONFUSED = 20  # classes in the table of confusions


def page(evaluation: Evaluation, facts: Facts) -> str:
    """The whole page, with its style and figures inside; it loads nothing and runs nothing."""
    title = escape(facts.title)
    quality = _regression(evaluation) if isinstance(evaluation, RegressionEvaluation) else _classes(evaluation)
    sections = "\n".join(_section(name, _named_values(values)) for name, values in facts.sections.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p>How well a Gaussian process predicts {_n_rows(evaluation)}, beside a linear model and a constant.</p>
</header>
<main>
{_section("Scores", _scores(evaluation))}
{_section("Training", _training(facts.history))}
{_section("Predictions", quality)}
{_section("Relevance of the inputs", _relevance(facts.relevance))}
{_section("Most surprising rows", _surprising(evaluation, facts))}
<div class="facts">
{sections}
</div>
</main>
<footer>Written by swsgp {escape(__version__)}.</footer>
</body>
</html>
"""


# ------------------------------------------------------------------------------------------------- scores


@dataclass(frozen=True)
class _Score:
    """A line of the table of scores; `loss` is lowest for the best value, None where no value is best."""

    key: str
    name: str
    meaning: str
    loss: Callable[[float], float] | None
    is_share: bool = False


_REGRESSION_SCORES = (
    _Score("rmse", "RMSE", "root of the mean squared error; low is good", float),
    _Score("mae", "MAE", "mean absolute error; low is good", float),
    _Score("r2", "R²", "share of the variance that is explained; 1 is perfect", lambda value: -value),
    _Score("nll", "NLL", "mean negative log density; low is good", float),
    _Score("crps", "CRPS", "distance from predicted distribution to observation; low is good", float),
    _Score(
        "coverage", "Coverage", "share of rows inside 95% intervals", lambda value: abs(value - 0.95), is_share=True
    ),
    _Score("width", "Width", "mean width of 95% intervals; narrow is good if coverage is right", None),
)
_CLASS_SCORES = (
    _Score("error", "Error", "share of rows whose predicted class is wrong; low is good", float, is_share=True),
    _Score("nll", "NLL", "mean negative log probability of the true class; low is good", float),
    _Score("brier", "Brier", "squared distance from probabilities to truth, from 0 to 2; low is good", float),
    _Score("ece", "ECE", "how far confidence and accuracy are apart; low is good", float, is_share=True),
    _Score("auc", "AUC", "area under the ROC curve; 1 is perfect, 0.5 is chance", lambda value: -value),
)


def _scores(evaluation: Evaluation) -> str:
    if isinstance(evaluation, RegressionEvaluation):
        summary, rows = _regression_summary(evaluation), [_score_row(s, evaluation.scores) for s in _REGRESSION_SCORES]
    else:
        summary, rows = _class_summary(evaluation), [_score_row(s, evaluation.scores) for s in _CLASS_SCORES]
    table = _table(["Score", *map(_clipped, evaluation.scores)], rows, "scores")
    return f'<p class="summary">{summary}</p>\n{table}\n{_note("The best of each line is bold.")}'


def _score_row(score: _Score, systems: dict[str, dict[str, float]]) -> list[str]:
    values = [scores.get(score.key, float("nan")) for scores in systems.values()]
    texts = [_share(value) if score.is_share else _number(value) for value in values]
    known = [(value, text) for value, text in zip(values, texts, strict=True) if not np.isnan(value)]
    if score.loss and known:
        loss = score.loss
        _, best = min(known, key=lambda pair: loss(pair[0]))
        texts = [f"<b>{text}</b>" if text == best else text for text in texts]
    return [f"{score.name} <small>{score.meaning}</small>", *texts]


def _ours(evaluation: Evaluation) -> dict[str, float]:
    return next(iter(evaluation.scores.values()))


def _regression_summary(evaluation: RegressionEvaluation) -> str:
    covered = f"95% intervals cover {_share(_ours(evaluation)['coverage'])} of {_n_rows(evaluation)}."
    compared = _compared(evaluation.scores, "rmse")
    return f"RMSE is {compared}; {covered}" if compared else covered


def _class_summary(evaluation: ClassEvaluation) -> str:
    ours = _ours(evaluation)
    compared = _compared(evaluation.scores, "error")
    return (
        f"The error is {_share(ours['error'])} on {_n_rows(evaluation)}{', ' + compared if compared else ''}. "
        f"Always naming the commonest class would err in {_share(ours['base_error'])}, and always predicting the "
        f"shares of the classes would have an NLL of {_number(ours['base_entropy'])}, their entropy."
    )


def _compared(systems: dict[str, dict[str, float]], key: str) -> str:
    """A score beside the linear model's in words; nothing where they cannot be compared."""
    ours, theirs = (own.get(key, float("nan")) for own in (next(iter(systems.values())), systems.get(LINEAR, {})))
    if not (np.isfinite(ours) and np.isfinite(theirs) and theirs > 0):
        return ""
    change = ours / theirs - 1.0
    if change >= 1:
        return f"{_number(1.0 + change)} times the linear model's"
    if abs(change) < 0.005:
        return "the same as the linear model's"
    return f"{abs(change):.0%} {'lower' if change < 0 else 'higher'} than the linear model's"


# ------------------------------------------------------------------------------------------------- figures


def _training(history: list[tuple[int, float, float, float | None]]) -> str:
    if not history:
        return "<p>No history of the training was kept.</p>"
    steps, seconds, bound, held_out = (np.array(column, dtype=float) for column in zip(*history, strict=True))
    figures = []
    for name, heading, caption, values in (
        ("bound", "Objective per row", "What training raises, in nats.", bound),
        ("held-out", "Held-out log score", "Mean log density of rows kept aside; high is good.", held_out),
    ):
        known = np.isfinite(values)
        if known.any():
            figures.append(
                _figure(name, heading, caption, training_curve, steps[known], values[known], heading.lower())
            )
    return f"<p>{_count(int(steps[-1]), 'step')} in {duration(seconds[-1])}.</p>\n{_figures(figures)}"


def _regression(evaluation: RegressionEvaluation) -> str:
    known = np.isfinite(evaluation.observed) & np.isfinite(evaluation.mean)
    observed, mean, std = (values[known] for values in (evaluation.observed, evaluation.mean, evaluation.std))
    position = evaluation.position[np.isfinite(evaluation.position)]
    figures = []
    if len(observed):
        dots = "Each dot is a test row" if len(observed) <= MOST_POINTS else "Darker cells have more test rows"
        agree = f"{dots}; on the line, both agree."
        band = "The lines are ±2 predicted standard deviations; about 19 in 20 rows should lie between."
        figures += [
            _figure("observed", "Observed against predicted", agree, observed_against_predicted, observed, mean),
            _figure("residuals", "Residuals", band, residuals_against_predicted, observed, mean, std),
        ]
    if len(position):
        level = "Below the diagonal, intervals are too narrow; above it, too wide. Grey is what chance explains."
        flat = "Flat is calibrated; a bowl means too narrow, a hump too wide, a slope biased predictions."
        figures += [
            _figure("coverage", "Coverage of intervals", level, coverage_against_level, position),
            _figure("position", "Where observations lie in their predictions", flat, position_histogram, position),
        ]
    return _figures(figures)


def _classes(evaluation: ClassEvaluation) -> str:
    labels, observed, probabilities = evaluation.labels, evaluation.observed.astype(int), evaluation.probabilities
    predicted = probabilities.argmax(axis=1)
    right, confidence = predicted == observed, probabilities.max(axis=1)
    caption = "On the diagonal, probabilities mean what they say; below it, they boast. Grey is what chance explains."
    figures = [_figure("reliability", "Reliability", caption, reliability, right, confidence)]
    curves = _curves(evaluation)
    if 0 < len(curves) <= MOST_CURVES:
        caption = "Rows found as the threshold falls; the further above the diagonal, the better."
        figures.append(_figure("roc", "ROC", caption, roc, curves))
    if len(labels) == 2:
        groups = {label: probabilities[observed == c, 1] for c, label in enumerate(labels)}
        caption = "The further apart the true classes are, the better."
        figures.append(_figure("probabilities", "Probabilities", caption, probability_histogram, groups, labels[1]))
    return f"{_figures(figures)}\n{_confusions(labels, observed, predicted)}"


def _curves(evaluation: ClassEvaluation) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Which rows have the class, and its probabilities, for each class with a ROC curve; of two the second."""
    classes = [1] if len(evaluation.labels) == 2 else range(len(evaluation.labels))
    members = {c: evaluation.observed == c for c in classes}
    return {
        evaluation.labels[c]: (rows, evaluation.probabilities[:, c])
        for c, rows in members.items()
        if rows.any() and not rows.all()
    }


def _confusions(labels: tuple[str, ...], observed: np.ndarray, predicted: np.ndarray) -> str:
    most = f"ROC curves are drawn for up to {MOST_CURVES} classes, true and predicted ones shown for {MOST_CONFUSED}"
    note = _note(f"{most}; the AUC above is the mean over the classes.") if len(labels) > MOST_CURVES else ""
    if len(labels) > MOST_CONFUSED:
        return note
    counts = np.zeros((len(labels), len(labels)), dtype=int)
    np.add.at(counts, (observed, predicted), 1)
    rows = [
        [_clipped(label), *(_shaded(n, n / max(sum(row), 1), is_right=c == d) for d, n in enumerate(row))]
        for c, (label, row) in enumerate(zip(labels, counts.tolist(), strict=True))
    ]
    kind = "confusions" if len(labels) <= 6 else "confusions many"
    table = _table(["True class", *map(_clipped, labels)], rows, kind)
    caption = "A line for each true class, a column for each predicted one."
    return f"<h3>True and predicted classes</h3>\n{_note(caption)}\n{table}\n{note}"


def _shaded(count: int, share: float, is_right: bool) -> str:
    colour = "43 108 176" if is_right else "221 107 32"
    return f'<span style="background: rgb({colour} / {0.5 * share:.2f})">{count:,}</span>'


def _figure(name: str, heading: str, caption: str, draw: Callable[..., None], *data: object) -> str:
    picture = svg(name, heading, draw, *data)
    return f"<figure>\n<figcaption><h3>{heading}</h3>\n<p>{caption}</p></figcaption>\n{picture}\n</figure>"


def _figures(figures: list[str]) -> str:
    return '<div class="figures">\n' + "\n".join(figures) + "\n</div>" if figures else "<p>Nothing to draw.</p>"


# -------------------------------------------------------------------------------------------------- tables


def _relevance(relevance: dict[str, float]) -> str:
    if not relevance:
        return "<p>This model has no relevances of single input columns.</p>"
    first = sorted(relevance.items(), key=lambda pair: -pair[1])
    shown, rest = first[:MOST_RELEVANCES], first[MOST_RELEVANCES:]
    widest = shown[0][1] or 1.0
    rows = [[_clipped(name), _bar(share / widest), _share(share)] for name, share in shown]
    note = "Shares of all input columns; they sum to 100%."
    if rest:
        note += f" {_count(len(rest), 'more column')} with {_share(sum(share for _, share in rest))} together."
    return f"{_table(['Column', '', 'Share'], rows, 'bars')}\n{_note(note)}"


def _bar(share: float) -> str:
    return f'<div class="bar" style="width: {100 * share:.1f}%"></div>'


def _surprising(evaluation: Evaluation, facts: Facts) -> str:
    if not facts.surprising:
        return "<p>There are none to show.</p>"
    by_relevance = sorted(range(len(facts.columns)), key=lambda c: -facts.relevance.get(facts.columns[c], 0.0))
    columns = sorted(by_relevance[:MOST_COLUMNS])
    doubt = "Std" if isinstance(evaluation, RegressionEvaluation) else "P(true)"
    heads = ["Row", *(_clipped(facts.columns[c]) for c in columns), "Observed", "Predicted", doubt, "Log density"]
    rows = [
        [str(row), *(_clipped(values[c]) for c in columns), *_outcome(evaluation, row)]
        for row, values in facts.surprising[:MOST_ROWS]
    ]
    note = "Test rows whose observation the model held for least likely, counted from 0."
    if len(facts.columns) > len(columns):
        which = f"{len(columns)} most relevant" if facts.relevance else f"first {len(columns)}"
        note += f" Of {len(facts.columns):,} input columns the {which} are shown."
    if len(facts.surprising) > len(rows):
        note += f" {_count(len(facts.surprising) - len(rows), 'more row')} left out."
    return f"{_note(note)}\n{_table(heads, rows, 'rows')}"


def _outcome(evaluation: Evaluation, row: int) -> list[str]:
    """Observed, predicted, std or probability of the true class, and log density of one row."""
    density = _number(float(evaluation.log_density[row]))
    if isinstance(evaluation, RegressionEvaluation):
        numbers = (evaluation.observed, evaluation.mean, evaluation.std)
        return [*(_number(float(values[row])) for values in numbers), density]
    true, probabilities = int(evaluation.observed[row]), evaluation.probabilities[row]
    labels = [_clipped(evaluation.labels[c]) for c in (true, int(probabilities.argmax()))]
    return [*labels, _number(float(probabilities[true])), density]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], kind: str) -> str:
    """A table whose first column names its lines; the texts are HTML."""
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    lines = "\n".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{text}</td>" for text in others)}</tr>'
        for first, *others in rows
    )
    return (
        f'<div class="scroll"><table class="{kind}">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{lines}\n</tbody>\n</table></div>"
    )


def _named_values(values: dict[str, str]) -> str:
    rows = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in values.items()
    )
    return f'<table class="values">\n<tbody>\n{rows}\n</tbody>\n</table>'


def _note(text: str) -> str:
    return f'<p class="note">{text}</p>'


def _section(heading: str, content: str) -> str:
    return f"<section>\n<h2>{escape(heading)}</h2>\n{content}\n</section>"


# ---------------------------------------------------------------------------------------------------- text


def _clipped(text: str) -> str:
    """Text of the user, cut with an ellipsis where it is too long; whole under the mouse."""
    return f'<span class="clip" title="{escape(text)}">{escape(text)}</span>'


def _number(value: float) -> str:
    """Four digits, as people write them: 0.01234, 12.34, 12,340, 1.234e+30; a dash for NaN."""
    if np.isnan(value):
        return "–"
    if np.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size != 0 and not 1e-4 <= size < 1e7:
        text = f"{value:.3e}"
    else:
        digits = 3 - int(np.floor(np.log10(size))) if size else 0
        text = f"{value:,.{max(digits, 0)}f}"
    return text.replace("-", "−")


def _share(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.1%}"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _n_rows(evaluation: Evaluation) -> str:
    return _count(len(evaluation.observed), "test row")
