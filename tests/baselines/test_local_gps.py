"""Local GPs: against the full GP, and what each kind may know."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import toy
from scipy.spatial.distance import cdist
from tolerances import EXACT

from swsgp import Gaussian, Matern52
from swsgp.baselines import local_gps
from swsgp.baselines.exact import FullGP, Prior, fit_full_gp
from swsgp.baselines.local_gps import LocalGPs, fit_local_gps
from swsgp.baselines.predictive import log_density, moments
from swsgp.errors import SettingError
from swsgp.gp.model import with_precision
from swsgp.shapes import precision_scope

KINDS = ("inductive", "transductive")


def priors_of(noises):
    """One prior for each expert, all different."""
    priors = [
        Prior(Matern52(np.array([0.8, 1.5]) * (1 + i), 1.3 + i), Gaussian(noise), np.array(0.4 * i))
        for i, noise in enumerate(noises)
    ]
    return with_precision(jax.tree.map(lambda *leaves: np.stack(leaves), *priors), "float64")


def local(x, y, centres, members, noises, kind):
    with precision_scope("float64"):
        return LocalGPs(priors_of(noises), *map(jnp.asarray, (centres, members, x, y)), kind)


def one_prior(priors, expert):
    with precision_scope("float64"):
        return jax.tree.map(lambda leaf: leaf[expert], priors)


@pytest.mark.parametrize("kind", KINDS)
def test_one_expert_that_owns_all_rows_is_the_full_gp(rng, kind):
    x, y = toy(rng, 30)
    points = rng.normal(size=(9, 2))
    experts = local(x, y, x[:1], np.arange(30)[None], [0.2], kind)
    full = FullGP(one_prior(experts.priors, 0), experts.x, experts.y)
    for found, expected in zip(experts.latent(points), full.latent(points), strict=True):
        np.testing.assert_allclose(found, expected, **EXACT)
    for found, expected in zip(
        moments(experts.likelihood, *experts.latent(points)),
        moments(full.likelihood, *full.latent(points)),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_each_prediction_is_that_of_the_full_gp_on_the_rows_of_its_kind(rng, kind, monkeypatch):
    x, y = toy(rng, 40)
    centres, points = np.array([[-1.0, 0.0], [1.0, 0.0]]), rng.normal(size=(6, 2))
    members = np.argsort(cdist(centres, x), axis=1)[:, :10]
    experts = local(x, y, centres, members, [0.2, 0.5], kind)
    # In chunks of two points.
    monkeypatch.setattr(local_gps, "_MAX_NUMBERS", 200)
    mean, variance = moments(experts.likelihood, *experts.latent(points))
    density = log_density(experts.likelihood, *experts.latent(points), np.zeros(6))
    for i, point in enumerate(points):
        expert = int(np.argmin(cdist(point[None], centres)))
        rows = members[expert] if kind == "inductive" else np.argsort(cdist(point[None], x)[0])[:10]
        with precision_scope("float64"):
            full = FullGP(one_prior(experts.priors, expert), jnp.asarray(x[rows]), jnp.asarray(y[rows]))
        expected_mean, expected_variance = moments(full.likelihood, *full.latent(point[None]))
        np.testing.assert_allclose(mean[i], expected_mean[0], **EXACT)
        np.testing.assert_allclose(variance[i], expected_variance[0], **EXACT)
        np.testing.assert_allclose(
            density[i], log_density(full.likelihood, *full.latent(point[None]), np.zeros(1))[0], **EXACT
        )


def test_learning_all_experts_at_once_finds_what_learning_one_alone_finds(rng):
    x, y = toy(rng, 60)
    experts = fit_local_gps(x, y, n_experts=3, n_points=40, steps=1000)
    for expert in range(3):
        rows = np.asarray(experts.members[expert])
        alone = fit_full_gp(x[rows], y[rows])
        together = FullGP(one_prior(experts.priors, expert), alone.x, alone.y)
        assert together.log_marginal_likelihood() == pytest.approx(alone.log_marginal_likelihood(), abs=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_experts_learn_a_function_whose_wiggles_differ_from_place_to_place(rng, kind):
    x = rng.uniform(-2, 2, size=(600, 1))
    y = np.where(x[:, 0] < 0, np.sin(12 * x[:, 0]), 0.3 * x[:, 0]) + 0.05 * rng.normal(size=600)
    model = fit_local_gps(x[:500], y[:500], kind=kind, n_experts=6, n_points=100, steps=150)
    mean, _ = moments(model.likelihood, *model.latent(x[500:]))
    assert np.sqrt(np.mean((mean - y[500:]) ** 2)) < 0.065
    assert log_density(model.likelihood, *model.latent(x[500:]), y[500:]).mean() > 1.3


def test_the_same_seed_gives_the_same_experts(rng):
    x, y = toy(rng, 80)
    one, same, other = (fit_local_gps(x, y, n_experts=4, n_points=20, steps=20, seed=seed) for seed in (0, 0, 1))
    for first, second in zip(jax.tree.leaves(one), jax.tree.leaves(same), strict=True):
        np.testing.assert_array_equal(first, second)
    assert np.abs(np.asarray(one.centres) - np.asarray(other.centres)).max() > 1e-3


def test_fewer_rows_than_experts_or_points_will_do(rng):
    x, y = toy(rng, 5)
    model = fit_local_gps(x, y, steps=20)
    assert model.members.shape == (5, 5)
    assert np.isfinite(model.latent(x)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "seductive"}, "kind must be one of inductive, transductive, got 'seductive'"),
        ({"n_experts": 0}, "n_experts must be a whole number, 1 or more, got 0"),
        ({"n_points": 0}, "n_points must be a whole number, 1 or more, got 0"),
        ({"steps": 0}, "steps must be a whole number"),
    ],
)
def test_settings_that_make_no_sense_are_refused(rng, options, message):
    with pytest.raises(SettingError, match=message):
        fit_local_gps(*toy(rng), **options)
