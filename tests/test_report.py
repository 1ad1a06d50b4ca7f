"""The report page: what it says, that it survives awkward numbers and names, and that a browser shows it."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn import metrics as sk

from swsgp import plots
from swsgp.evaluation import ClassEvaluation, RegressionEvaluation
from swsgp.metrics import class_scores, pit, regression_scores
from swsgp.report import Facts, page

COLUMNS = ("temperature", "pressure", "humidity")
FACTS = Facts(
    title="powerplant.swsgp",
    sections={"Model": {"kernel": "Matérn 5/2"}, "Versions": {"Python": "3.12"}},
    history=[],
    relevance={"temperature": 0.5, "pressure": 0.3, "humidity": 0.2},
    columns=COLUMNS,
    surprising=[(0, ["21.5", "1013", "80"])],
)
TRAINED = replace(FACTS, history=[(100, 1.0, -2.0, None), (200, 2.0, -1.5, -1.6), (300, 63.0, -1.4, -1.5)])
REGRESSION_FIGURES = ["Observed against predicted", "Residuals", "Coverage of intervals"]
REGRESSION_FIGURES += ["Where observations lie in their predictions"]


def regression(y, mean, std):
    """The evaluation of predictions N(mean, std²), with a worse linear model and a constant beside it."""
    y, mean, std = (np.asarray(values, dtype=float) for values in (y, mean, std))
    scores = {
        "swsgp": regression_scores(y, mean, std**2),
        "linear": regression_scores(y, 1.5 * mean + 1.0, std**2),
        "constant": regression_scores(y, np.full(len(y), y.mean()), np.full(len(y), y.var() + 1.0)),
    }
    density = -0.5 * np.log(2 * np.pi * std**2) - 0.5 * ((y - mean) / std) ** 2
    lower, upper = mean - 1.96 * std, mean + 1.96 * std
    return RegressionEvaluation(y, mean, std, lower, upper, pit(y, mean, std**2), density, scores)


def classes(labels, observed, p):
    """The evaluation of class probabilities, with less certain ones and the base rates beside it."""
    uniform = np.full(p.shape, 1.0 / p.shape[1])
    scores = {
        "swsgp": class_scores(observed, p),
        "linear": class_scores(observed, 0.5 * p + 0.5 * uniform),
        "constant": class_scores(observed, uniform),
    }
    return ClassEvaluation(tuple(labels), observed, p, np.log(p[np.arange(len(p)), observed]), scores)


def random_regression(rng, n):
    mean, std = rng.normal(size=n), rng.uniform(0.1, 0.5, size=n)
    return regression(rng.normal(mean, std), mean, std)


def without_figures(evaluation):
    """The same scores, and nothing to draw, which saves the time for tests of the words."""
    nothing = np.full(len(evaluation.mean), np.nan)
    return replace(evaluation, mean=nothing, position=nothing)


def random_classes(rng, n, n_classes):
    p = rng.dirichlet(np.full(n_classes, 0.4), size=n) * 0.99 + 0.01 / n_classes
    observed = np.array([rng.choice(n_classes, p=row / row.sum()) for row in p])
    return classes([f"class {c}" for c in range(n_classes)], observed, p)


class Reader(HTMLParser):
    """Tags, ids, links, text and names of figures of a page; every element must be closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.links, self.figures, self.texts = [], set(), [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)
        self.handle_startendtag(tag, attrs)

    def handle_startendtag(self, tag, attrs):
        values = dict(attrs)
        self.tags.add(tag)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values[name] for name in ("src", "href", "xlink:href") if name in values]
        if tag == "svg":
            assert values["role"] == "img"
            self.figures.append(values["aria-label"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.texts.append(data)


def read(evaluation, facts=FACTS):
    """The page, after what must be true of every page."""
    text = page(evaluation, facts)
    reader = Reader(text)
    assert len(set(reader.ids)) == len(reader.ids)
    assert {link.removeprefix("#") for link in reader.links} <= set(reader.ids)
    assert set(re.findall(r"url\(#(\w+)\)", text)) <= set(reader.ids)
    assert "://" not in text
    assert not re.search(r"\b(nan|inf|None)\b", reader.text)
    assert len(text.encode()) < 1_000_000
    return reader


# ------------------------------------------------------------------------------------------- what it says


def test_a_regression_page_has_its_figures_and_scores(rng):
    reader = read(random_regression(rng, 300), TRAINED)
    assert reader.figures == ["Objective per row", "Held-out log score", *REGRESSION_FIGURES]
    for text in ("powerplant.swsgp", "RMSE", "MAE", "R²", "NLL", "CRPS", "Coverage", "Width", "Matérn 5/2", "1013"):
        assert text in reader.text
    assert "300 steps in 1 min 3 s." in reader.text


def test_a_binary_page_has_one_curve_and_the_probabilities_of_both_classes(rng):
    reader = read(random_classes(rng, 300, 2))
    assert reader.figures == ["Reliability", "ROC", "Probabilities"]
    assert "class 1, area" in reader.text
    assert "class 0, area" not in reader.text
    for text in ("Error", "NLL", "Brier", "ECE", "AUC", "True and predicted classes", "their entropy"):
        assert text in reader.text


def test_a_page_of_three_classes_has_a_curve_for_each(rng):
    reader = read(random_classes(rng, 300, 3))
    assert reader.figures == ["Reliability", "ROC"]
    assert all(f"class {c}, area" in reader.text for c in range(3))


@pytest.mark.parametrize(
    ("n_classes", "has_curves", "has_table"), [(10, True, True), (20, False, True), (21, False, False)]
)
def test_many_classes_have_fewer_figures(rng, n_classes, has_curves, has_table):
    reader = read(random_classes(rng, 400, n_classes))
    assert ("ROC" in reader.figures) == has_curves
    assert ("True and predicted classes" in reader.text) == has_table
    assert ("ROC curves are drawn for up to 10 classes" in reader.text) == (n_classes > 10)


@pytest.mark.parametrize(
    ("rmse", "linear", "words"),
    [
        (0.5, {"rmse": 1.25}, "RMSE is 60% lower than the linear model's; 95% intervals cover 94.6% of 20 test rows."),
        (1.5, {"rmse": 1.25}, "RMSE is 20% higher than the linear model's; 95%"),
        (1.5, {"rmse": 1.5001}, "RMSE is the same as the linear model's; 95%"),
        (1e30, {"rmse": 1.25}, "RMSE is 8.000e+29 times the linear model's; 95%"),
        (0.0, {"rmse": 0.0}, "Scores 95% intervals cover"),
        (np.nan, {"rmse": 1.0}, "Scores 95% intervals cover"),
        (1.5, {}, "Scores 95% intervals cover"),
    ],
)
def test_the_summary_says_how_the_model_compares(rng, rmse, linear, words):
    scores = {"swsgp": {"rmse": rmse, "coverage": 0.946}, "linear": linear}
    assert words in read(replace(without_figures(random_regression(rng, 20)), scores=scores)).text


def test_the_best_score_is_bold_and_a_missing_one_is_a_dash(rng):
    evaluation = without_figures(random_regression(rng, 20))
    scores = {
        "swsgp": {"rmse": 2.0, "r2": 0.9, "coverage": 0.99, "width": 1.0},
        "linear": {"rmse": 2.0, "r2": 0.5, "coverage": 0.94, "width": 2.0},
        "constant": {"rmse": 4.0, "r2": float("nan"), "coverage": 0.90, "width": 3.0},
    }
    rows = dict(
        re.findall(
            r"<th scope=\"row\">(\S+) <small>.*?</th>(.*?)</tr>", page(replace(evaluation, scores=scores), FACTS)
        )
    )
    assert rows["RMSE"] == "<td><b>2.000</b></td><td><b>2.000</b></td><td>4.000</td>"
    assert rows["R²"] == "<td><b>0.9000</b></td><td>0.5000</td><td>–</td>"
    assert rows["Coverage"] == "<td>99.0%</td><td><b>94.0%</b></td><td>90.0%</td>"
    assert rows["Width"] == "<td>1.000</td><td>2.000</td><td>3.000</td>"
    assert rows["CRPS"] == "<td>–</td><td>–</td><td>–</td>"


def test_surprising_rows_show_what_was_observed_and_predicted(rng):
    evaluation = regression([1.0, 2.0, 30.0], [1.0, 2.5, 3.0], [1.0, 0.5, 2.0])
    facts = replace(FACTS, surprising=[(2, ["a", "b", "c"])])
    assert "2 a b c 30.00 3.000 2.000 −92.74" in read(evaluation, facts).text
    p = np.array([[0.9, 0.1], [0.75, 0.25]])
    facts = replace(FACTS, surprising=[(1, ["a", "b", "c"])])
    assert "1 a b c leave stay 0.2500 −1.386" in read(classes(["stay", "leave"], np.array([0, 1]), p), facts).text


def test_what_is_left_out_is_said(rng):
    evaluation = without_figures(random_regression(rng, 20))
    columns = tuple(f"x{c}" for c in range(800))
    relevance = {name: (c + 1) / 320_400 for c, name in enumerate(columns)}
    surprising = [(row, ["1.0"] * 800) for row in range(12)]
    facts = replace(FACTS, columns=columns, relevance=relevance, surprising=surprising)
    text = read(evaluation, facts).text
    assert "they sum to 100%. 780 more columns with 95.1% together." in text
    assert "Row x792 x793 x794 x795 x796 x797 x798 x799 Observed" in text
    assert "Of 800 input columns the 8 most relevant are shown. 2 more rows left out." in text
    assert "the first 8 are shown" in read(evaluation, replace(facts, relevance={})).text


# ------------------------------------------------------------------------------------- what figures compute


def test_coverage_counts_the_rows_inside_central_intervals():
    figure = Figure()
    plots.coverage_against_level(figure, np.array([0.5, 0.3, 0.9, 0.999]))
    levels, share = figure.axes[0].lines[1].get_data()
    np.testing.assert_allclose(levels[[0, 9, 18, 19]], [0.05, 0.5, 0.95, 0.99])
    np.testing.assert_allclose(share[[0, 9, 18, 19]], [0.25, 0.5, 0.75, 0.75])


def test_areas_of_roc_curves_equal_those_of_scikit_learn_with_ties_and_many_rows(rng):
    score = np.round(rng.uniform(size=20_000), 3)
    is_class = rng.uniform(size=20_000) < score**2
    figure = Figure()
    plots.roc(figure, {"yes": (is_class, score)})
    curve = figure.axes[0].lines[1]
    assert curve.get_label() == f"yes, area {sk.roc_auc_score(is_class, score):.3f}"
    assert len(curve.get_xdata()) <= 400
    np.testing.assert_allclose(
        np.trapezoid(curve.get_ydata(), curve.get_xdata()), sk.roc_auc_score(is_class, score), atol=1e-4
    )


def test_residuals_are_shown_with_two_standard_deviations():
    figure = Figure()
    mean = np.linspace(0.0, 1.0, 200)
    plots.residuals_against_predicted(figure, mean + 0.1, mean, 1.0 + (mean > 0.5))
    _, upper, lower, _ = figure.axes[0].lines
    np.testing.assert_allclose(upper.get_ydata()[[0, -1]], [2.0, 4.0])
    np.testing.assert_allclose(lower.get_ydata(), -upper.get_ydata())


def test_reliability_compares_right_predictions_with_their_probability():
    figure = Figure()
    confidence = np.array([0.5, 0.5, 0.5, 0.5, 0.9, 0.9])
    plots.reliability(figure, np.array([True, True, True, False, True, True]), confidence)
    x, y = figure.axes[0].lines[-1].get_data()
    np.testing.assert_allclose(x, [0.5, 0.9])
    np.testing.assert_allclose(y, [0.75, 1.0])


# ---------------------------------------------------------------------------------------- awkward pages


AWKWARD = {
    "one row": regression([1.0], [1.5], [1.0]),
    "a constant target": regression(np.ones(50), np.ones(50), np.full(50, 0.1)),
    "zero everywhere": regression(np.zeros(50), np.zeros(50), np.full(50, 0.1)),
    "huge values": regression(np.linspace(-1e30, 1e30, 50), np.linspace(-1e30, 1e30, 50) + 1e29, np.full(50, 1e29)),
    "one huge value": regression([1e30, *range(49)], np.arange(50.0), np.ones(50)),
    "an infinite std": regression(np.arange(50.0), np.arange(50.0), [np.inf, *np.ones(49)]),
    "only infinite stds": regression(np.arange(50.0), np.arange(50.0), np.full(50, np.inf)),
    "more rows than points": regression(np.ones(6000), np.ones(6000), np.ones(6000)),
    "one row of two classes": classes(["no", "yes"], np.array([0]), np.array([[0.3, 0.7]])),
    "one row of three classes": classes(["a", "b", "c"], np.array([1]), np.array([[0.3, 0.6, 0.1]])),
    "a class that never occurs": classes(["a", "b", "c"], np.array([0, 1] * 20), np.tile([0.3, 0.3, 0.4], (40, 1))),
    "certain predictions": classes(["a", "b"], np.array([0, 1]), np.array([[1.0, 0.0], [0.0, 1.0]])),
}


@pytest.mark.parametrize("evaluation", AWKWARD.values(), ids=AWKWARD.keys())
def test_awkward_numbers_are_shown_without_a_warning(evaluation):
    reader = read(evaluation)
    if isinstance(evaluation, RegressionEvaluation):
        assert reader.figures == REGRESSION_FIGURES
    else:
        assert "Reliability" in reader.figures


@pytest.mark.parametrize("name", ["huge values", "a class that never occurs"])
def test_single_precision_is_as_good(name):
    evaluation = AWKWARD[name]
    arrays = {key: value for key, value in vars(evaluation).items() if isinstance(value, np.ndarray)}
    single = {key: value.astype(np.float32) for key, value in arrays.items() if value.dtype == float}
    assert single
    assert len(read(replace(evaluation, **single)).figures) >= 2


def test_predictions_that_are_not_numbers_are_left_out_of_the_figures(rng):
    evaluation = random_regression(rng, 20)
    assert read(without_figures(evaluation)).figures == []
    evaluation.mean[3] = evaluation.std[4] = evaluation.position[5] = evaluation.log_density[0] = np.nan
    assert read(evaluation).figures == REGRESSION_FIGURES


@pytest.mark.parametrize(
    ("history", "figures"),
    [
        ([], []),
        ([(1, 0.1, -5.0, None)], ["Objective per row"]),
        ([(1, 0.1, -1e30, -np.inf), (2, 0.2, -5.0, np.nan), (3, 0.3, np.nan, None)], ["Objective per row"]),
        ([(1, 0.1, -1.0, -np.inf), (2, 7300.0, -1.0, -2.0)], ["Objective per row", "Held-out log score"]),
    ],
)
def test_training_is_drawn_as_far_as_it_is_known(rng, history, figures):
    reader = read(without_figures(random_regression(rng, 20)), replace(FACTS, history=history))
    assert reader.figures == figures
    assert ("No history" in reader.text) == (not history)


def test_a_page_without_facts_still_stands(rng):
    facts = Facts("", {}, [], {}, (), [])
    assert read(random_regression(rng, 20), facts).figures == REGRESSION_FIGURES


def test_names_of_the_user_are_only_text():
    nasty = '<script>console.error("run")</script> & "$x^2$" \' \\frac{'
    reader = read(*nasty_page(nasty))
    assert reader.text.count(nasty) > 10
    assert "script" not in reader.tags


def nasty_page(name):
    """A page on which everything that has a name has this one, with a letter behind it where they must differ."""
    p = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.2, 0.2, 0.6]])
    evaluation = classes([name, name + "b", name + "c"], np.array([0, 1, 2]), p)
    evaluation = replace(evaluation, scores={**evaluation.scores, name: evaluation.scores["linear"]})
    return evaluation, Facts(name, {name: {name: name}}, [], {name: 1.0}, (name,), [(0, [name])])


def test_a_dollar_in_a_name_starts_no_mathematics():
    assert "$x^{$b, area 1.000" in read(*nasty_page("$x^{$")).text


def test_names_in_other_scripts_and_lines_need_no_font():
    read(*nasty_page("气温 🌡 حرارة\nsecond line\ttab"))


@pytest.mark.parametrize("n", [plots.MOST_POINTS, 200_000])
def test_many_rows_make_a_small_page(rng, n):
    assert len(page(random_regression(rng, n), FACTS)) < 800_000


def test_the_same_evaluation_gives_the_same_page(rng):
    evaluation = random_classes(rng, 50, 3)
    assert page(evaluation, FACTS) == page(evaluation, FACTS)


# ------------------------------------------------------------------------------------------- in a browser

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_a_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")

MEASURE = """<pre id="measured"></pre><script>
const boxes = selector => [...document.querySelectorAll(selector)].map(e => e.getBoundingClientRect());
document.getElementById("measured").textContent = JSON.stringify({
  figures: boxes("svg").map(b => [b.width, b.height]),
  bars: boxes(".bar").map(b => b.width),
  loaded: performance.getEntriesByType("resource").map(e => e.name),
  excess: document.documentElement.scrollWidth - document.documentElement.clientWidth,
});
</script></body>"""


def browse(text, folder, width=1000):
    """What a browser measures on a page, and the lines of its console.

    The page may run scripts here, those of its own if it had any and ours, but still load nothing.
    """
    policy = "default-src 'none';"
    assert policy in text
    text = text.replace(policy, policy + " script-src 'unsafe-inline';").replace("</body>", MEASURE)
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    measured = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout)
    return json.loads(html.unescape(measured[1])), console


@in_a_browser
@pytest.mark.parametrize(("n_classes", "n_figures"), [(0, 6), (2, 5), (3, 4)])
def test_a_browser_shows_every_figure_and_complains_of_nothing(rng, tmp_path, n_classes, n_figures):
    evaluation = random_classes(rng, 200, n_classes) if n_classes else random_regression(rng, 200)
    measured, console = browse(page(evaluation, TRAINED), tmp_path)
    assert console == []
    assert measured["loaded"] == []
    assert len(measured["figures"]) == n_figures
    assert all(width > 300 and height > 200 for width, height in measured["figures"])
    assert measured["bars"] == sorted(measured["bars"], reverse=True)
    assert measured["bars"][-1] > 10


@in_a_browser
def test_no_name_runs_or_widens_the_page_beyond_a_small_screen(tmp_path):
    name = '<script>console.error("run")</script>' + "x" * 3000
    measured, console = browse(page(*nasty_page(name)), tmp_path, width=500)
    assert console == []
    assert measured["excess"] <= 0


@in_a_browser
def test_huge_numbers_do_not_widen_the_page(tmp_path):
    measured, console = browse(page(AWKWARD["huge values"], FACTS), tmp_path, width=500)
    assert console == []
    assert measured["excess"] <= 0


@in_a_browser
def test_the_browser_test_sees_a_broken_script_a_request_and_a_wide_page(rng, tmp_path):
    broken = '<script>nonsense()</script><img src="https://example.org/x.png"><div style="width: 3000px">x</div></body>'
    measured, console = browse(page(random_regression(rng, 20), FACTS).replace("</body>", broken), tmp_path)
    assert any("nonsense is not defined" in line for line in console)
    assert any("Content Security Policy" in line for line in console)
    assert measured["excess"] > 0
