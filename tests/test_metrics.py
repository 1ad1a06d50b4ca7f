import numpy as np
import pytest
from scipy import integrate, stats
from sklearn import metrics as sk

from swsgp import metrics


@pytest.fixture
def regression(rng):
    mean, variance = rng.normal(size=400), rng.uniform(0.2, 2.0, size=400)
    return rng.normal(mean, np.sqrt(variance)), mean, variance


@pytest.fixture
def classes(rng):
    logits = rng.normal(size=(500, 3))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return np.array([rng.choice(3, p=row) for row in p]), p


def test_errors_equal_those_of_scikit_learn(regression):
    y, mean, _ = regression
    np.testing.assert_allclose(metrics.rmse(y, mean), sk.root_mean_squared_error(y, mean))
    np.testing.assert_allclose(metrics.mae(y, mean), sk.mean_absolute_error(y, mean))
    np.testing.assert_allclose(metrics.r2(y, mean), sk.r2_score(y, mean))
    assert np.isnan(metrics.r2(np.ones(3), np.zeros(3)))


def test_nll_is_the_log_density_and_the_papers_is_shifted(regression):
    y, mean, variance = regression
    expected = -stats.norm.logpdf(y, mean, np.sqrt(variance)).mean()
    np.testing.assert_allclose(metrics.gaussian_nll(y, mean, variance), expected)
    scores = metrics.regression_scores(y, mean, variance)
    np.testing.assert_allclose(scores["nll"] - scores["nll_paper"], 0.4595, atol=1e-4)
    # The paper's powerplant row: RMSE 4.095 with MNLL 2.371, which no Gaussian density can have.
    np.testing.assert_allclose(np.log(4.095) + 0.5 * np.log(2 * np.pi) + 0.5 - metrics.PAPER_SHIFT, 2.371, atol=2e-3)


def test_crps_equals_its_definition():
    y, mean, std = 0.7, -0.2, 1.3
    below, _ = integrate.quad(lambda t: stats.norm.cdf(t, mean, std) ** 2, -15, y)
    above, _ = integrate.quad(lambda t: (1 - stats.norm.cdf(t, mean, std)) ** 2, y, 15)
    ours = metrics.crps(np.array([y]), np.array([mean]), np.array([std**2]))
    np.testing.assert_allclose(ours, below + above, rtol=1e-6)


def test_coverage_and_pit_of_honest_predictions(rng):
    variance = rng.uniform(0.2, 2.0, size=100_000)
    y = rng.normal(0.0, np.sqrt(variance))
    scores = metrics.regression_scores(y, np.zeros(100_000), variance)
    np.testing.assert_allclose(scores["coverage"], 0.95, atol=0.005)
    np.testing.assert_allclose(scores["width"], 2 * 1.95996 * np.sqrt(variance).mean(), rtol=1e-3)
    assert stats.kstest(metrics.pit(y, np.zeros(100_000), variance), "uniform").pvalue > 0.01


def test_class_scores_equal_those_of_scikit_learn(classes):
    labels, p = classes
    np.testing.assert_allclose(metrics.error_rate(labels, p), 1 - sk.accuracy_score(labels, p.argmax(1)))
    np.testing.assert_allclose(metrics.class_nll(labels, p), sk.log_loss(labels, p))
    np.testing.assert_allclose(metrics.auc(labels, p), sk.roc_auc_score(labels, p, multi_class="ovr"))
    two = np.column_stack([1 - p[:, 1], np.round(p[:, 1], 1)])
    np.testing.assert_allclose(metrics.auc(labels == 1, two), sk.roc_auc_score(labels == 1, two[:, 1]))
    brier = np.mean([((row - np.eye(3)[label]) ** 2).sum() for row, label in zip(p, labels, strict=True)])
    np.testing.assert_allclose(metrics.brier(labels, p), brier)


def test_knowing_nothing_stands_beside_the_scores(classes):
    labels, p = classes
    scores = metrics.class_scores(labels, p)
    rates = np.tile(metrics.base_rates(labels, 3), (len(labels), 1))
    np.testing.assert_allclose(scores["base_entropy"], metrics.class_nll(labels, rates))
    np.testing.assert_allclose(scores["base_error"], metrics.error_rate(labels, rates))


def test_a_class_without_cases_has_no_auc():
    assert np.isnan(metrics.auc(np.zeros(5), np.full((5, 2), 0.5)))


def test_calibration_error_is_zero_for_honest_and_large_for_boastful_probabilities(rng):
    p = rng.uniform(size=200_000)
    labels = (rng.uniform(size=len(p)) < p).astype(int)
    honest = np.column_stack([1 - p, p])
    assert metrics.calibration_error(labels, honest) < 0.01
    boastful = np.where(honest > 0.5, 0.999, 0.001)
    np.testing.assert_allclose(metrics.calibration_error(labels, boastful), 0.25, atol=0.01)


def test_a_certain_and_wrong_prediction_scores_finite():
    assert np.isfinite(metrics.class_nll(np.array([0]), np.array([[0.0, 1.0]])))


def test_tallies_of_parts_add_up_to_the_scores_of_all():
    rng = np.random.default_rng(0)
    y, mean, variance = 1e6 + rng.normal(size=999), 1e6 + rng.normal(size=999), rng.uniform(0.5, 2.0, size=999)
    whole = metrics.regression_scores(y, mean, variance)
    parts = [
        metrics.NumberTally.of(*(a[s] for a in (y, mean, variance))) for s in (slice(7), slice(7, 600), slice(600, 999))
    ]
    assert (parts[0] + parts[1] + parts[2]).scores() == pytest.approx(whole, rel=1e-9)
    assert whole["rmse"] == pytest.approx(metrics.rmse(y, mean))
    assert whole["r2"] == pytest.approx(metrics.r2(y, mean))


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize(("offset", "spread"), [(0.0, 2.0), (0.0, 0.005), (-26.0, 1.0)])
def test_tallies_of_classes_add_up_and_their_auc_is_right(n_classes, offset, spread):
    """Also where all probabilities are alike, or very small."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, n_classes, size=20_000)
    logits = spread * (rng.normal(size=(20_000, n_classes)) + np.eye(n_classes)[labels])
    logits[:, 1:] += offset
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    whole = metrics.class_scores(labels, p)
    first = metrics.ClassTally.of(labels[:5000], p[:5000])
    found = (first + metrics.ClassTally.of(labels[5000:], p[5000:], first.edges)).scores()
    assert found["auc"] == pytest.approx(whole.pop("auc"), abs=1e-4)
    assert {name: found[name] for name in whole} == pytest.approx(whole, rel=1e-9)


def test_cases_unlike_the_first_ones_have_bins_too():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, size=20_000)
    p = 1.0 / (1.0 + np.exp(-np.where(np.arange(20_000) < 50, 8.0, -2.0) - labels - rng.normal(size=20_000)))
    p = np.stack([1.0 - p, p], axis=1)
    first = metrics.ClassTally.of(labels[:50], p[:50])
    found = (first + metrics.ClassTally.of(labels[50:], p[50:], first.edges)).scores()
    assert found["auc"] == pytest.approx(metrics.auc(labels, p), abs=1e-3)


def test_certain_probabilities_have_a_bin():
    tally = metrics.ClassTally.of(np.array([0, 1, 1]), np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
    assert tally.scores()["auc"] == 0.75
