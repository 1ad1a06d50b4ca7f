"""SVGP, the engine with every inducing variable active, against GPyTorch's with the same parameters."""

import numpy as np
import pytest
from models import JITTER, LENGTHSCALE, NOISE, VARIANCE, M, dense_q_u, estimate, make, toy

from swsgp import All, Predictor
from swsgp.baselines.torch_parts import import_torch, torch_scope

pytest.importorskip("gpytorch")


def gpytorch_svgp(z, mean, cov):
    """Their model with q(u) = N(mean, cov). It keeps q of L⁻¹u, where LLᵀ is the prior covariance."""
    torch, gpytorch = import_torch()

    class SVGP(gpytorch.models.ApproximateGP):
        def __init__(self):
            q = gpytorch.variational.CholeskyVariationalDistribution(len(z))
            strategy = gpytorch.variational.VariationalStrategy(
                self, torch.from_numpy(z), q, jitter_val=JITTER * VARIANCE
            )
            super().__init__(strategy)
            self.mean = gpytorch.means.ZeroMean()
            self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5, ard_num_dims=z.shape[1]))

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

    model = SVGP().double()
    model.covariance.outputscale = VARIANCE
    model.covariance.base_kernel.lengthscale = torch.from_numpy(LENGTHSCALE)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = NOISE
    with torch.no_grad():
        prior = model.covariance(torch.from_numpy(z)).to_dense().numpy() + JITTER * VARIANCE * np.eye(len(z))
        whiten = np.linalg.inv(np.linalg.cholesky(prior))
        q = model.variational_strategy._variational_distribution
        q.variational_mean.copy_(torch.from_numpy(whiten @ mean))
        q.chol_variational_covar.copy_(torch.from_numpy(np.linalg.cholesky(whiten @ cov @ whiten.T)))
        model.variational_strategy.variational_params_initialized.fill_(1)
    return model, likelihood


def test_bound_and_predictions_equal_those_of_gpytorch_with_the_same_parameters(float64, rng):
    torch, gpytorch = import_torch()
    x, y = toy(rng, 20)
    points = rng.normal(size=(6, 2))
    ours = make(x, All(), "full", n_inducing=M)
    mean, cov = dense_q_u(ours)
    with torch_scope(0), torch.no_grad():
        model, likelihood = gpytorch_svgp(np.array(ours.inducing), mean, cov)
        objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=100)
        theirs = 100 * objective(model(torch.from_numpy(x)), torch.from_numpy(y)).item()
        predicted = model.eval()(torch.from_numpy(points))
    np.testing.assert_allclose(estimate(ours, x, y, 100), theirs, rtol=1e-5)
    found_mean, found_cov = Predictor(ours).joint(points)
    np.testing.assert_allclose(found_mean[:, 0], predicted.mean.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found_cov[0], predicted.covariance_matrix.detach().numpy(), rtol=1e-5, atol=1e-6)
