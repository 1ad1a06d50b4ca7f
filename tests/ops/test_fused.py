"""The compiled operations against the plain ones, which are the reference."""

import threading
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse
from tolerances import EXACT

from swsgp import (
    RBF,
    Columns,
    Constant,
    Gaussian,
    Linear,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    PerPoint,
    RationalQuadratic,
    create,
)
from swsgp.gp.model import with_precision
from swsgp.gp.variational import Full
from swsgp.ops import fused, native
from swsgp.ops.local import inverse_factor, local_terms_diagonal, local_terms_full, log_det

pytestmark = pytest.mark.skipif(native._native is None, reason="the compiled operations were not built")

COVARIANCES = [
    Matern52(np.array([0.8, 1.2, 2.0]), 1.5),
    Matern32(np.array([0.8, 1.2, 2.0])) + Linear(np.array([0.1, 0.2, 0.3])),
    Constant(0.5) + Matern(1.3, 0.7, (1, 2, 3)),
    RBF(1.5) + (Linear(0.1) + Constant(0.2)),
    Columns(Matern12(np.array([1.0, 2.0])), (2, 0)) * Constant(2.0),
]


@pytest.fixture
def level():
    """Sets the instruction set for a test."""
    native.is_available()
    best = native._native.level()
    yield native._native.set_level
    native._native.set_level(best)


def problem(rng, n_points, n_active, n_latent, dtype=np.float64):
    x = rng.normal(size=(n_points, 3))
    z = x[:, None] + 0.7 * rng.normal(size=(n_points, n_active, 3))
    mean = rng.normal(size=(n_points, n_active, n_latent))
    variance = np.exp(rng.normal(size=mean.shape) - 2.0)
    return [jnp.asarray(part, dtype) for part in (x, z, mean, variance)]


def with_covariances(rng, given):
    """The same problem where u has covariances, (B, Q, H, H)."""
    x, z, mean, _ = given
    (n_points, n_active, n_latent), dtype = mean.shape, mean.dtype
    roots = 0.3 * rng.normal(size=(n_points, n_latent, n_active, n_active + 2))
    return [x, z, mean, jnp.asarray(roots @ roots.swapaxes(2, 3), dtype)]


def plain(covariance, x, z, mean, variance, jitter):
    def one(x, z, mean, variance):
        k = covariance.matrix(z, z)
        k = k + jitter * jnp.mean(jnp.diagonal(k)) * jnp.eye(len(z), dtype=k.dtype)
        given = k, covariance.matrix(z, x[None]), covariance.diagonal(x[None]), mean, variance
        return local_terms_diagonal(*given) if variance.ndim == 2 else local_terms_full(*given, log_det(variance))

    f_mean, f_variance, kl = jax.vmap(one)(x, z, mean, variance)
    return f_mean[:, 0], f_variance[:, 0], kl


def compiled(covariance, x, z, mean, variance, jitter):
    simple = covariance.simple(3)
    return fused.local_terms(x, z, simple.packed(0.0, jitter), mean, variance, simple.kinds)


def value_and_gradients(terms, covariance, *rest):
    """A function of all results, and its gradients with respect to all inputs."""

    def value(covariance, *rest):
        mean, variance, kl = terms(covariance, *rest)
        return jnp.sum(jnp.sin(mean)) + jnp.sum(jnp.cos(3.0 * variance)) + 0.01 * jnp.sum(kl**2)

    return jax.value_and_grad(value, argnums=(0, 1, 2, 3, 4))(covariance, *rest)


def assert_alike(ours, expected, scale=1.0):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9 * scale, atol=1e-9 * scale * float(1e-3 + np.abs(other).max()))


@pytest.mark.parametrize("covariance", COVARIANCES, ids=lambda c: type(c).__name__)
def test_terms_and_gradients_equal_the_plain_ones(float64, rng, covariance):
    covariance = with_precision(covariance, "float64")
    # Neither number of points nor size fits the vectors.
    for sizes in ((11, 5, 1), (3, 18, 2)):
        given = (*problem(rng, *sizes), jnp.asarray(1e-3))
        expected = jax.jit(value_and_gradients, static_argnums=0)(plain, covariance, *given)
        assert_alike(value_and_gradients(compiled, covariance, *given), expected)


@pytest.mark.parametrize("sizes", [(11, 5, 1), (3, 18, 2), (1, 1, 3), (20, 4, 1)])
def test_terms_and_gradients_with_a_full_s_equal_the_plain_ones(float64, rng, sizes):
    covariance = with_precision(COVARIANCES[1], "float64")
    given = (*with_covariances(rng, problem(rng, *sizes)), jnp.asarray(1e-3))
    expected = jax.jit(value_and_gradients, static_argnums=0)(plain, covariance, *given)
    assert_alike(value_and_gradients(compiled, covariance, *given), expected)


def test_a_full_s_takes_nothing_from_a_variance(rng):
    """S that varies, and a lot, across what f looks at alone: what it adds is 0 but for rounding."""
    x, z, _, _ = problem(rng, 200, 5, 1, np.float32)
    simple = with_precision(COVARIANCES[0], "float32").simple(3)
    terms = partial(fused.local_terms, x, z, simple.packed(0.0, 1e-3), kinds=simple.kinds)
    units = jnp.broadcast_to(jnp.eye(5, dtype=np.float32), (200, 5, 5))
    weights, without, _ = terms(units, jnp.zeros((200, 0, 5), np.float32))
    across = rng.normal(size=(200, 5))
    across -= (
        np.asarray(weights) * np.sum(across * weights, axis=1, keepdims=True) / np.sum(weights**2, axis=1)[:, None]
    )
    s = jnp.asarray(1e4 * across[:, None, :, None] * across[:, None, None, :], np.float32)
    variance = terms(jnp.zeros((200, 5, 1), np.float32), s)[1]
    assert bool(jnp.all(variance[:, 0] >= without[:, 0]))


@pytest.mark.parametrize("terms", [plain, compiled])
def test_a_full_s_that_rounding_leaves_no_root_has_a_kl_and_a_gradient(rng, terms):
    """S has a condition of 1e10, its root one of 1e5, which float32 can hold."""
    given = problem(rng, 30, 8, 1, np.float32)
    turned = np.linalg.qr(rng.normal(size=(30, 8, 8)))[0] * np.logspace(0, -5, 8)
    given[3] = jnp.asarray((turned @ turned.swapaxes(1, 2))[:, None], np.float32)
    assert np.linalg.eigvalsh(given[3]).min() < 0
    covariance = with_precision(COVARIANCES[0], "float32")
    found = jax.jit(value_and_gradients, static_argnums=0)(terms, covariance, *given, jnp.asarray(1e-3, np.float32))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


def test_systems_on_the_host_are_those_of_the_definition(float64, rng):
    z, x = rng.normal(size=(40, 3)), rng.normal(size=(19, 3))
    index = np.stack([rng.permutation(40)[:6] for _ in range(19)]).astype(np.int32)
    covariance = with_precision(COVARIANCES[0], "float64")
    simple = covariance.simple(3)
    rest = np.asarray(simple.packed(0.0, 1e-3)), simple.kinds, np.zeros((40, 0)), np.zeros((19, 0))
    a, left, precision, log_det = native.systems(x, index, z, *rest, whole=True)
    for i in range(len(x)):
        active, own = jnp.asarray(z[index[i]]), jnp.asarray(x[i : i + 1])
        k_zz, k_xz = np.asarray(covariance.matrix(active, active)), np.asarray(covariance.matrix(active, own))[:, 0]
        k_zz = k_zz + 1e-3 * np.diagonal(k_zz).mean() * np.eye(6)
        np.testing.assert_allclose(a[i], np.linalg.solve(k_zz, k_xz), **EXACT)
        np.testing.assert_allclose(left[i], covariance.diagonal(own)[0] - a[i] @ k_xz, **EXACT)
        np.testing.assert_allclose(precision[i], np.linalg.inv(k_zz), **EXACT)
        np.testing.assert_allclose(log_det[i], np.linalg.slogdet(k_zz)[1], **EXACT)


@pytest.mark.parametrize(("n", "n_active", "n_latent"), [(1, 1, 1), (7, 7, 2), (100, 5, 1), (200, 17, 3)])
def test_products_of_rows_of_a_root_equal_the_plain_ones(float64, rng, monkeypatch, n, n_active, n_latent):
    """Rows that several points have, and more columns than are taken at a time."""
    q = Full.start(n, n_latent, 0.5)
    q = jax.tree.map(lambda part: jnp.asarray(rng.normal(size=part.shape)), q)
    index = jnp.asarray(np.stack([rng.permutation(n)[:n_active] for _ in range(9)]))
    weights = jnp.asarray(rng.normal(size=(9, n_latent, n_active, n_active)))

    def value_and_gradient(q):
        return jax.value_and_grad(lambda q: jnp.sum(weights * jnp.sin(q.of_points(index))))(q)

    ours = q.of_points(index), value_and_gradient(q)
    monkeypatch.setattr(native, "is_available", lambda: False)
    assert_alike(ours, (q.of_points(index), value_and_gradient(q)))


def test_every_instruction_set_gives_the_same(float64, rng, level):
    covariance = with_precision(COVARIANCES[1], "float64")
    given = (*problem(rng, 9, 6, 2), jnp.asarray(1e-3))
    with_all = (*with_covariances(rng, given[:4]), given[4])
    q = Full(jnp.zeros((90, 1)), jnp.asarray(rng.normal(size=(90, 1))), jnp.asarray(rng.normal(size=(1, 32, 128))))
    index = jnp.asarray(rng.integers(0, 90, size=(9, 6)))

    def everything():
        gradient = jax.grad(lambda q: jnp.sum(jnp.sin(q.of_points(index))))(q)
        return gradient, *(value_and_gradients(compiled, covariance, *one) for one in (given, with_all))

    expected = everything()
    for number in range(native._native.level() + 1):
        level(number)
        assert_alike(everything(), expected)
    with pytest.raises(ValueError, match="instruction set"):
        level(3)


def test_in_float32(rng):
    covariance = with_precision(COVARIANCES[1], "float32")
    given = (*problem(rng, 20, 33, 1, np.float32), jnp.asarray(1e-3, jnp.float32))
    expected = jax.jit(plain)(covariance, *given)
    for ours, other in zip(compiled(covariance, *given), expected, strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-3, atol=1e-4 * float(np.abs(other).max()))


def test_points_that_coincide_have_finite_gradients(float64, rng):
    x, z, mean, variance = problem(rng, 4, 5, 1)
    z = z.at[:, 1].set(z[:, 0]).at[:, 2].set(x)
    for covariance in COVARIANCES[2:4]:
        covariance = with_precision(covariance, "float64")
        given = (x, z, mean, variance, jnp.asarray(1e-3))
        assert_alike(
            value_and_gradients(compiled, covariance, *given),
            jax.jit(value_and_gradients, static_argnums=0)(plain, covariance, *given),
        )


@pytest.mark.parametrize("covariance", [COVARIANCES[0], COVARIANCES[2], COVARIANCES[4]], ids=lambda c: type(c).__name__)
def test_a_point_far_from_all_others_has_the_prior(rng, covariance):
    """Farther than a square in float32 can tell."""
    covariance = with_precision(covariance, "float32")
    x, z, mean, variance = problem(rng, 3, 5, 1, np.float32)
    given = (x + 1e25, z, mean, variance, jnp.asarray(1e-3, jnp.float32))
    f_mean, f_variance, _ = compiled(covariance, *given)
    constant = covariance.simple(3).constant
    if constant == 0.0:
        np.testing.assert_allclose(f_mean, 0.0, atol=1e-6)
        np.testing.assert_allclose(f_variance[:, 0], covariance.diagonal(x), rtol=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in value_and_gradients(compiled, covariance, *given)[1][3:])
    assert np.isfinite(f_variance).all()


def test_gradients_of_inputs_are_left_out_where_nobody_asks(float64, rng):
    x, z, mean, variance = problem(rng, 4, 5, 1)
    simple = with_precision(COVARIANCES[0], "float64").simple(3)

    def value(mean, z):
        return jnp.sum(fused.local_terms(x, z, simple.packed(0.0, 1e-3), mean, variance, simple.kinds)[0])

    assert jax.grad(value, 1)(mean, z).shape == z.shape
    backward = next(
        eqn for eqn in jax.make_jaxpr(jax.grad(value))(mean, z).eqns if "backward" in str(eqn.params.get("target_name"))
    )
    assert [out.aval.shape for out in backward.outvars[-2:]] == [(0,), (0,)]


def test_known_values_give_the_conditional(float64, rng):
    x, z, values, _ = problem(rng, 7, 6, 2)
    covariance = with_precision(COVARIANCES[0], "float64")
    simple = covariance.simple(3)
    mean, variance, _ = fused.local_terms(x, z, simple.packed(0.3, 0.0), values, jnp.zeros((7, 0, 2)), simple.kinds)
    for i in range(7):
        k_zz = np.asarray(covariance.matrix(z[i], z[i])) + 0.3 * np.eye(6)
        a = np.linalg.solve(k_zz, covariance.matrix(z[i], x[i : i + 1]))
        np.testing.assert_allclose(mean[i], (a.T @ np.asarray(values[i]))[0], **EXACT)
        left = covariance.diagonal(x[i : i + 1]) - a.T @ covariance.matrix(z[i], x[i : i + 1])
        np.testing.assert_allclose(variance[i], np.broadcast_to(left[0], (2,)), **EXACT)


def test_a_matrix_that_is_not_positive_definite_spoils_its_own_point_only(float64, rng):
    x, z, mean, variance = problem(rng, 9, 5, 1)
    z = z.at[4].set(0.0)
    simple = with_precision(COVARIANCES[0], "float64").simple(3)
    terms = fused.local_terms(x, z, simple.packed(-1e-3, 0.0), mean, variance, simple.kinds)
    bad = np.arange(9) == 4
    for part in terms:
        np.testing.assert_array_equal(np.isnan(part).reshape(9, -1).any(axis=1), bad)


@pytest.mark.parametrize("size", [1, 4, 7, 33])
def test_factors_of_many_matrices(float64, rng, size):
    roots = rng.normal(size=(5, size, size + 2))
    k = jnp.asarray(roots @ roots.transpose(0, 2, 1))
    expected = np.linalg.inv(np.linalg.cholesky(k))
    np.testing.assert_allclose(jax.vmap(inverse_factor)(k), expected, **EXACT)
    np.testing.assert_allclose(jax.vmap(jax.vmap(inverse_factor))(k[None])[0], expected, **EXACT)
    np.testing.assert_allclose(inverse_factor(k[0]), expected[0], **EXACT)


def test_a_sum_of_blocks(rng):
    index = np.sort(np.stack([rng.permutation(50)[:6] for _ in range(40)]), axis=1).astype(np.int32)
    blocks = rng.normal(size=(40, 6, 6))
    blocks += blocks.transpose(0, 2, 1)
    expected = np.zeros((50, 50))
    for own, block in zip(index, blocks, strict=True):
        expected[np.ix_(own, own)] += block
    found = native.sum_of_blocks(index, blocks, 50)
    assert found.has_sorted_indices
    np.testing.assert_allclose(found.toarray(), np.triu(expected), rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="fit together"):
        native.sum_of_blocks(index, blocks, 49)


@pytest.mark.parametrize("n_rows", [1, 50, 30_000])
def test_products_of_sparse_matrices(rng, n_rows):
    """The last is large enough for two threads."""
    index = np.stack([rng.permutation(60)[:7] for _ in range(min(n_rows, 500))])[
        rng.integers(0, min(n_rows, 500), n_rows)
    ]
    a, omega, start, v = (
        rng.normal(size=(n_rows, 7)),
        rng.normal(size=n_rows),
        rng.normal(size=n_rows),
        rng.normal(size=60),
    )
    matrix = sparse.csr_matrix((a.ravel(), index.ravel(), np.arange(n_rows + 1) * 7), (n_rows, 60))
    r, product = native.gram_times(matrix.indices, matrix.data, omega, start, v)
    np.testing.assert_allclose(r, omega * (start + matrix @ v), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(product, matrix.T @ (omega * (start + matrix @ v)), rtol=1e-9, atol=1e-9)
    if n_rows > 1:
        with pytest.raises(ValueError, match="fit together"):
            native.gram_times(matrix.indices[:-1], matrix.data[:-1], omega, start, v)


@pytest.mark.parametrize("n", [1, 40, 700])
def test_products_of_symmetric_matrices(rng, n):
    whole = rng.normal(size=(n, n)) * (rng.uniform(size=(n, n)) < 0.8)
    whole = whole + whole.T
    upper = sparse.csr_matrix(np.triu(whole))
    v = rng.normal(size=n)
    parts = upper.indptr.astype(np.int64), upper.indices, upper.data
    found = native.symmetric_times(*parts, v)
    np.testing.assert_allclose(found, whole @ v, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="fit together"):
        native.symmetric_times(*parts, np.zeros(n + 1))


def test_a_model_without_the_operations_gives_the_same(float64, rng, monkeypatch):
    x = rng.normal(size=(30, 3))
    model = create(x, COVARIANCES[1], Gaussian(0.1), PerPoint(5), n_inducing=12, precision="float64")
    model = eqx.tree_at(lambda m: m.variational.mean, model, jnp.asarray(rng.normal(size=(12, 1))))
    index = model.active_set(jnp.asarray(x))
    seen = jnp.zeros((30, 0))
    ours = model.terms(jnp.asarray(x), index), model.own_system(jnp.asarray(x), index, seen, whole=True)
    monkeypatch.setattr(native, "is_available", lambda: False)
    expected = model.terms(jnp.asarray(x), index), model.own_system(jnp.asarray(x), index, seen, whole=True)
    assert_alike(ours, expected)


def test_covariances_without_a_simple_form_say_so():
    two_distances = Matern52(1.0) + Matern32(2.0)
    for covariance in (
        RationalQuadratic(1.0),
        two_distances,
        Matern52(1.0) * Linear(1.0),
        Columns(two_distances, (0,)),
    ):
        assert covariance.simple(3) is None


@pytest.mark.parametrize("smallest", [0.0, -1.0, np.inf, np.nan])
def test_variances_that_have_no_logarithm_are_noticed(rng, smallest):
    """The bound of a step is then not a number, or infinite, and the step is taken back."""
    x, z, mean, variance = problem(rng, 20, 8, 1, np.float32)
    variance = variance.at[3, 2].set(smallest)
    simple = with_precision(COVARIANCES[0], "float32").simple(3)
    kl = np.asarray(fused.local_terms(x, z, simple.packed(0.0, 1e-3), mean, variance, simple.kinds).kl)
    assert np.isfinite(np.delete(kl, 3)).all()
    assert not np.isfinite(kl[3])


def test_many_threads_at_once(rng):
    x, z, mean, variance = problem(rng, 40, 8, 1, np.float32)
    simple = with_precision(COVARIANCES[0], "float32").simple(3)
    theta = simple.packed(0.0, 1e-3)
    run = jax.jit(lambda mean: fused.local_terms(x, z, theta, mean, variance, simple.kinds).kl)
    expected = np.asarray(run(mean))
    wrong = []

    def work():
        for _ in range(50):
            if not np.array_equal(run(mean), expected):
                wrong.append(True)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)
