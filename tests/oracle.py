"""The method for one point, in plain NumPy float64, written from the paper's equations.

Nothing here is clever: inverses are inverses, and gradients are finite differences.
"""

import numpy as np


def q_f(k_zz, k_zx, k_xx, mean, cov):
    """Mean and variance of q(f) at one point: the paper's equation for the posterior over f given w(x)."""
    a = np.linalg.inv(k_zz) @ k_zx
    return a @ mean, k_xx + a @ (cov - k_zz) @ a


def kl(k_zz, mean, cov):
    """KL( N(mean, cov) || N(0, k_zz) )."""
    inverse = np.linalg.inv(k_zz)
    trace = np.trace(inverse @ cov)
    log_dets = np.linalg.slogdet(k_zz)[1] - np.linalg.slogdet(cov)[1]
    return 0.5 * (trace + mean @ inverse @ mean - len(mean) + log_dets)


def gaussian_expected_log_prob(y, mean, variance, noise):
    return -0.5 * np.log(2 * np.pi * noise) - ((y - mean) ** 2 + variance) / (2 * noise)


def matern52(x, z, lengthscale, variance):
    """Matérn-5/2 on all pairs, by two loops."""
    k = np.empty((len(x), len(z)))
    for i, one in enumerate(x):
        for j, other in enumerate(z):
            r = np.sqrt(np.sum(((one - other) / lengthscale) ** 2))
            k[i, j] = variance * (1 + np.sqrt(5) * r + 5 / 3 * r**2) * np.exp(-np.sqrt(5) * r)
    return k


def nearest(x, z, lengthscale, n):
    """The n rows of z nearest to the point x in units of the lengthscales."""
    return np.argsort(np.sum(((x - z) / lengthscale) ** 2, axis=1), kind="stable")[:n]


def bound(x, y, z, mean, cov, lengthscale, variance, noise, n_neighbors, n_data, jitter, kl_scale=1.0):
    """Algorithm 1 on one mini-batch, point by point, for the Gaussian likelihood and Matérn-5/2."""
    ell = kl_sum = 0.0
    for point, target in zip(x, y, strict=True):
        w = nearest(point, z, lengthscale, n_neighbors)
        k_zz = matern52(z[w], z[w], lengthscale, variance) + jitter * variance * np.eye(n_neighbors)
        k_zx = matern52(z[w], point[None], lengthscale, variance)[:, 0]
        f_mean, f_variance = q_f(k_zz, k_zx, variance, mean[w], cov[np.ix_(w, w)])
        ell += gaussian_expected_log_prob(target, f_mean, f_variance, noise)
        kl_sum += kl(k_zz, mean[w], cov[np.ix_(w, w)])
    return n_data / len(x) * ell - kl_scale / len(x) * kl_sum


def titsias(x, y, z, lengthscale, variance, noise, jitter):
    """Titsias' collapsed bound: log N(y | 0, Q + noise I) − tr(K − Q) / (2 noise)."""
    k_zz = matern52(z, z, lengthscale, variance) + jitter * variance * np.eye(len(z))
    k_xz = matern52(x, z, lengthscale, variance)
    q = k_xz @ np.linalg.solve(k_zz, k_xz.T)
    total = q + noise * np.eye(len(x))
    log_density = -0.5 * (np.linalg.slogdet(2 * np.pi * total)[1] + y @ np.linalg.solve(total, y))
    return log_density - (variance * len(x) - np.trace(q)) / (2 * noise)


def best_q_u(x, y, z, lengthscale, variance, noise, jitter):
    """The q(u) that attains Titsias' bound."""
    k_zz = matern52(z, z, lengthscale, variance) + jitter * variance * np.eye(len(z))
    k_zx = matern52(z, x, lengthscale, variance)
    inner = np.linalg.inv(k_zz + k_zx @ k_zx.T / noise)
    return k_zz @ inner @ k_zx @ y / noise, k_zz @ inner @ k_zz


def finite_difference(function, point, step=1e-6):
    """Gradient of a scalar function by central differences."""
    gradient = np.zeros_like(point)
    for i in np.ndindex(point.shape):
        moved = point.copy()
        moved[i] += step
        up = function(moved)
        moved[i] -= 2 * step
        gradient[i] = (up - function(moved)) / (2 * step)
    return gradient
