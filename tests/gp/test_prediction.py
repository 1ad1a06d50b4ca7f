import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from models import JITTER, LENGTHSCALE, NOISE, VARIANCE, D, H, M, dense_q_u, make, toy
from tolerances import EXACT, TOLERANCE

from swsgp import (
    All,
    Bernoulli,
    Gaussian,
    Matern52,
    PerPoint,
    Poisson,
    Predictor,
    RationalQuadratic,
    Softmax,
    Union,
    create,
)
from swsgp.errors import DataError, NumericalError, SettingError
from swsgp.gp import prediction
from swsgp.gp.few import FewPoints
from swsgp.ops import native


@pytest.mark.parametrize("form", ["diag", "full"])
def test_latent_moments_equal_the_oracle(float64, rng, form):
    x, _ = toy(rng)
    model = make(x, PerPoint(H), form)
    mean, cov = dense_q_u(model)
    z = np.asarray(model.inducing)
    ours_mean, ours_variance = Predictor(model).latent(x)
    for i, point in enumerate(x):
        w = oracle.nearest(point, z, LENGTHSCALE, H)
        k_zz = oracle.matern52(z[w], z[w], LENGTHSCALE, VARIANCE) + JITTER * VARIANCE * np.eye(H)
        k_zx = oracle.matern52(z[w], point[None], LENGTHSCALE, VARIANCE)[:, 0]
        expected = oracle.q_f(k_zz, k_zx, VARIANCE, mean[w], cov[np.ix_(w, w)])
        np.testing.assert_allclose((ours_mean[i, 0], ours_variance[i, 0]), expected, **EXACT)


@pytest.mark.parametrize("active", [PerPoint(H), All()])
def test_chunks_do_not_change_predictions(float64, rng, monkeypatch, active):
    x, y = toy(rng, 45)
    model = make(x, active)
    whole = Predictor(model).moments(x), Predictor(model).log_density(x, y)
    monkeypatch.setattr(prediction, "_MAX_ROWS", 8)
    parts = Predictor(model).moments(x), Predictor(model).log_density(x, y)
    for one, other in zip((*whole[0], whole[1]), (*parts[0], parts[1]), strict=True):
        assert one.shape == (45,)
        np.testing.assert_allclose(one, other, **EXACT)


@pytest.mark.skipif(native._native is None, reason="the compiled operations were not built")
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("likelihood", [Gaussian(NOISE), Softmax(3)])
@pytest.mark.parametrize("form", ["diag", "full"])
def test_a_few_rows_on_the_host_are_predicted_as_many_are(rng, precision, likelihood, form):
    x, _ = toy(rng, 1 + prediction._FEW // H)
    model = make(
        x, PerPoint(H), form, likelihood=likelihood, offset=np.full(likelihood.n_latent, 0.7), precision=precision
    )
    predictor = Predictor(model)
    assert isinstance(predictor._few_points, FewPoints)
    many = predictor.latent(x)
    for i in (0, 3):
        for few, all_of_them in zip(predictor.latent(x[i : i + 2]), many, strict=True):
            assert few.dtype == precision
            np.testing.assert_allclose(few, all_of_them[i : i + 2], **TOLERANCE[precision])


@pytest.mark.skipif(native._native is None, reason="the compiled operations were not built")
def test_a_few_rows_are_predicted_on_the_host_beside_a_gpu_too(rng, monkeypatch):
    x, _ = toy(rng)
    model = make(x, PerPoint(H), likelihood=Bernoulli())
    with monkeypatch.context() as by_programs:
        by_programs.setattr(prediction, "_FEW", 0)
        expected = Predictor(model).probabilities(x[:2])
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    predictor = Predictor(model)
    monkeypatch.setattr(prediction.programs, "per_point", None)
    used, of_moments = [], prediction.programs.of_moments

    def watched(*args, **kwargs):
        used.append(jax.config.jax_default_device)
        return of_moments(*args, **kwargs)

    monkeypatch.setattr(prediction.programs, "of_moments", watched)
    np.testing.assert_allclose(predictor.probabilities(x[:2]), expected, **EXACT)
    assert used == [jax.devices("cpu")[0]]


@pytest.mark.parametrize(
    "change",
    [{"covariance": RationalQuadratic()}, {"active": All()}, {"form": "full"}],
    ids=["covariance", "active", "a large S"],
)
def test_a_model_that_is_not_simple_is_left_to_its_programs(float64, rng, monkeypatch, change):
    monkeypatch.setattr("swsgp.gp.few._MAX_FULL", 1)
    x, _ = toy(rng)
    assert Predictor(make(x, **({"active": PerPoint(H), "form": "diag"} | change)))._few_points is None


def test_observed_variance_is_latent_plus_noise_and_density_is_gaussian(float64, rng):
    x, y = toy(rng)
    predictor = Predictor(make(x, PerPoint(H)))
    (latent_mean, latent_variance), (mean, variance) = predictor.latent(x), predictor.moments(x)
    np.testing.assert_allclose(mean, latent_mean[:, 0], **EXACT)
    np.testing.assert_allclose(variance, latent_variance[:, 0] + NOISE, **EXACT)
    density = -0.5 * (np.log(2 * np.pi * variance) + (y - mean) ** 2 / variance)
    np.testing.assert_allclose(predictor.log_density(x, y), density, **EXACT)


@pytest.mark.parametrize("form", ["diag", "full"])
@pytest.mark.parametrize("likelihood", [Gaussian(NOISE), Softmax(3)])
def test_joint_prediction_of_all_has_the_marginals_on_its_diagonal(float64, rng, form, likelihood):
    x, _ = toy(rng)
    predictor = Predictor(make(x, All(), form, likelihood=likelihood))
    mean, cov = predictor.joint(x)
    marginal_mean, marginal_variance = predictor.latent(x)
    assert cov.shape == (likelihood.n_latent, len(x), len(x))
    np.testing.assert_allclose(mean, marginal_mean, **EXACT)
    np.testing.assert_allclose(np.diagonal(cov, axis1=1, axis2=2).T, marginal_variance, **EXACT)
    assert min(np.linalg.eigvalsh(one).min() for one in cov) > -1e-9


def test_joint_prediction_of_a_union_uses_the_neighbours_of_all_points_asked_for(float64, rng):
    x, _ = toy(rng)
    model = make(x, Union(5, 2), "full")
    z = np.asarray(model.inducing)
    asked = x[:3]
    w = np.unique([oracle.nearest(point, z, LENGTHSCALE, 2) for point in asked])
    k_zz = oracle.matern52(z[w], z[w], LENGTHSCALE, VARIANCE) + JITTER * VARIANCE * np.eye(len(w))
    a = np.linalg.solve(k_zz, oracle.matern52(z[w], asked, LENGTHSCALE, VARIANCE))
    m, s = dense_q_u(model)
    expected = oracle.matern52(asked, asked, LENGTHSCALE, VARIANCE) + a.T @ (s[np.ix_(w, w)] - k_zz) @ a
    mean, cov = Predictor(model).joint(asked)
    np.testing.assert_allclose(mean[:, 0], a.T @ m[w], **EXACT)
    np.testing.assert_allclose(cov[0], expected, **EXACT)
    for one, other in zip(Predictor(model).latent(asked), (mean, np.diagonal(cov, axis1=1, axis2=2).T), strict=True):
        np.testing.assert_allclose(one, other, **EXACT)


@pytest.mark.parametrize("form", ["diag", "full"])
def test_union_of_everything_equals_all_in_mean_and_covariance(float64, rng, form):
    x, _ = toy(rng)
    for one, other in zip(
        Predictor(make(x, Union(M, M), form)).joint(x), Predictor(make(x, All(), form)).joint(x), strict=True
    ):
        np.testing.assert_allclose(one, other, **EXACT)


def test_the_joint_covariance_of_points_with_their_own_sets_is_that_of_the_process(float64, rng):
    """f(x) = a(x)ᵀu + r(x), with r(x) = g(x) − a(x)ᵀ(g(z) + ε) for g from the prior and ε the jitter."""
    x, _ = toy(rng)
    model = make(x, PerPoint(H))
    mean, cov = Predictor(model).joint(x)
    mean_alone, variance_alone = Predictor(model).latent(x)
    np.testing.assert_allclose(mean, mean_alone, **EXACT)
    np.testing.assert_allclose(np.diagonal(cov[0]), variance_alone[:, 0], **EXACT)
    z, index = model.inducing, np.asarray(model.active_set(jnp.asarray(x)))
    k_zz = np.asarray(model.k_zz(jnp.arange(M)))
    k_zx = np.asarray(model.covariance.matrix(z, jnp.asarray(x)))
    a = np.zeros((len(x), M))
    for row, own in enumerate(index):
        a[row, own] = np.linalg.solve(k_zz[np.ix_(own, own)], k_zx[own, row])
    both = np.block([[np.asarray(model.covariance.matrix(jnp.asarray(x), jnp.asarray(x))), k_zx.T], [k_zx, k_zz]])
    remainder = np.hstack([np.eye(len(x)), -a])
    expected = remainder @ both @ remainder.T + a @ np.asarray(model.variational.covariance(jnp.arange(M))[0]) @ a.T
    np.testing.assert_allclose(cov[0], expected, rtol=1e-8, atol=1e-10)
    assert np.linalg.eigvalsh(cov[0]).min() > -1e-10


def test_training_with_all_and_predicting_with_neighbours_is_svgp_m_h(float64, rng):
    x, _ = toy(rng)
    mixed = make(x, All(), active_prediction=PerPoint(H))
    near = make(x, PerPoint(H))
    assert mixed.active_set(jnp.asarray(x)).shape == (M,)
    for one, other in zip(Predictor(mixed).moments(x), Predictor(near).moments(x), strict=True):
        np.testing.assert_allclose(one, other, **EXACT)


def test_probabilities_have_a_column_for_each_class_and_sum_to_one(rng):
    x, _ = toy(rng)
    for likelihood in (Bernoulli(), Bernoulli("logit"), Softmax(4)):
        p = Predictor(make(x, PerPoint(H), likelihood=likelihood, precision="float32")).probabilities(x)
        assert p.shape == (len(x), likelihood.n_classes)
        np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-5)


def test_asking_for_what_a_likelihood_does_not_have_is_refused(rng):
    x, _ = toy(rng)
    with pytest.raises(SettingError, match="ask for probabilities"):
        Predictor(make(x, PerPoint(H), likelihood=Bernoulli())).moments(x)
    with pytest.raises(SettingError, match="ask for moments"):
        Predictor(make(x, PerPoint(H), likelihood=Poisson())).probabilities(x)


def test_a_model_in_float64_predicts_in_float64_whatever_the_callers_setting(rng):
    x, _ = toy(rng)
    mean, _ = Predictor(make(x, PerPoint(H))).moments(x)
    assert mean.dtype == np.float64
    assert jnp.ones(1).dtype == jnp.float32


def test_a_factor_that_fails_is_tried_again_with_more_jitter(rng):
    """In float32 with no jitter at all, repeated inducing inputs have no factor."""
    x = rng.normal(size=(20, D))
    model = create(x, Matern52(1.0), Gaussian(), PerPoint(8), n_inducing=16, placement=np.ones((16, D)), jitter=1e-9)
    mean, variance = Predictor(model).moments(x)
    assert np.isfinite(mean).all()
    assert (variance > 0).all()


def test_a_prediction_that_cannot_be_made_finite_is_an_error(rng):
    x, _ = toy(rng)
    broken = make(x, PerPoint(H), "diag", precision="float32")
    broken = eqx.tree_at(lambda m: m.variational.mean, broken, jnp.full((M, 1), jnp.nan))
    with pytest.raises(NumericalError, match="not finite"):
        Predictor(broken).moments(x)


def test_one_point_far_from_everything_gets_the_prior(float64, rng):
    x, _ = toy(rng)
    mean, variance = Predictor(make(x, PerPoint(H))).latent(np.full((1, D), 1e6))
    np.testing.assert_allclose(mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(variance, VARIANCE, rtol=1e-12)


@pytest.mark.parametrize("active", [PerPoint(H), Union(4, 2), All()])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((3, 1)), "must have 2 columns"),
        (np.zeros(2), "two axes"),
        (np.zeros((0, 2)), "at least one row"),
        (np.array([[1.0, np.nan]]), "1 NaN or infinite values in column 1"),
        (np.array([["1", "2"]]), "must be numbers"),
    ],
)
def test_inputs_that_cannot_be_used_are_refused(rng, active, bad, message):
    predictor = Predictor(make(toy(rng)[0], active, precision="float32"))
    methods = [predictor.latent, predictor.moments, lambda x: predictor.log_density(x, np.zeros(len(x)))]
    for method in methods if isinstance(active, PerPoint) else [*methods, predictor.joint]:
        with pytest.raises(DataError, match=message):
            method(bad)


def test_observations_that_do_not_fit_are_refused(rng):
    x, _ = toy(rng)
    predictor = Predictor(make(x, PerPoint(H), likelihood=Softmax(3), precision="float32"))
    with pytest.raises(DataError, match="needs labels among 0"):
        predictor.log_density(x, np.full(len(x), 7.0))
    with pytest.raises(DataError, match="as many rows"):
        predictor.log_density(x, np.zeros(3))


def test_jitter_is_raised_four_times_and_the_last_try_counts(rng):
    predictor = Predictor(make(toy(rng)[0], PerPoint(H), precision="float32"))
    tries = []

    def compute(model):
        tries.append(float(model.jitter))
        is_last = len(tries) == 5
        return jnp.asarray([is_last]), (jnp.asarray([1.0 if is_last else np.nan]),)

    assert predictor._retried(compute)[0] == 1.0
    np.testing.assert_allclose(tries[-1] / tries[0], 1e4, rtol=1e-5)


def test_a_full_covariance_keeps_chunks_small(rng):
    """Rows of L are M numbers for every neighbour of every point."""
    x = rng.normal(size=(300, D))
    predictor = Predictor(make(x, PerPoint(2), "full", n_inducing=300, precision="float32"))
    sizes = [len(chunk[0]) for _, chunk in predictor._chunks(np.zeros((60_000, D), np.float32))]
    assert max(sizes) * 2 * 300 <= prediction._MAX_NUMBERS


def test_quantiles_and_positions_undo_each_other(float64, rng):
    x, _ = toy(rng)
    predictor = Predictor(make(x, PerPoint(H)))
    levels = np.array([0.05, 0.5, 0.9])
    quantiles = predictor.quantiles(x, levels)
    for j, level in enumerate(levels):
        mean, variance, lower, upper, position, log_density = predictor.assess_numbers(x, quantiles[:, j])
        np.testing.assert_allclose(position, level, rtol=1e-6)
        np.testing.assert_allclose(log_density, predictor.log_density(x, quantiles[:, j]), rtol=1e-9)
    np.testing.assert_allclose([mean, variance], predictor.moments(x), rtol=1e-9)
    np.testing.assert_allclose([lower, upper], predictor.quantiles(x, np.array([0.025, 0.975])).T, rtol=1e-9)
    np.testing.assert_allclose(quantiles[:, 1], mean, rtol=1e-9)


def test_moments_and_an_interval_in_one_go_are_those_asked_for_apart(float64, rng):
    x, _ = toy(rng)
    predictor = Predictor(make(x, PerPoint(H), likelihood=Poisson()))
    together = predictor.moments_and_interval(x, 0.1, 0.7)
    apart = *predictor.moments(x), *predictor.quantiles(x, np.array([0.1, 0.7])).T
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_allclose(one, other, **EXACT)
