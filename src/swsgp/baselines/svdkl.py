r"""SVDKL (Wilson et al. 2016), on GPyTorch: a deep network with GPs on top, trained together on mini-batches.

The network takes a row to J features between −1 and 1. Each feature has a GP $g_j$ of its own, whose inducing
variables lie on a regular grid, with interpolation in between; the latent functions mix them linearly,
$f_q = \sum_j A_{qj} g_j + b_q$. Under q the $g_j$ are independent Gaussians, so one latent function is Gaussian, too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from swsgp.arrays import inputs_for, pair_for
from swsgp.baselines.predictive import in_chunks
from swsgp.baselines.torch_parts import import_torch, load_parameters, parameters_of, torch_scope
from swsgp.data.batches import RowStream
from swsgp.errors import NumericalError, SettingError
from swsgp.fit.progress import ProgressBar
from swsgp.fit.settings import Settings
from swsgp.fit.stopping import Clock, Report
from swsgp.gp.likelihoods import Bernoulli, Gaussian, Likelihood, Softmax
from swsgp.gp.quadrature import normal_draws

# Weights of the network are pulled towards 0 by this much; the GPs have a prior instead.
_DECAY = 1e-4
# The network learns slower than the GPs, which have few parameters.
_NETWORK_RATE = 0.1
_N_TRAINING_DRAWS, _N_PREDICTION_DRAWS = 8, 32
# Where q(u) starts, as a share of the prior's standard deviation.
_NARROW = 0.1
_JITTER = 1e-4
_MAX_ROWS = 4096
# Steps after which progress is shown.
_SHOW_EVERY = 50


@dataclass(frozen=True)
class SVDKL:
    """A fitted model: what was learned by its names in PyTorch, and the sizes that it was made with."""

    likelihood: Likelihood
    parameters: dict[str, np.ndarray]
    n_columns: int
    hidden: tuple[int, ...]
    n_features: int
    grid_size: int

    def latent(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent functions, (len(x), Q) each.

        Several latent functions are mixtures of the same GPs, so they depend on each other. They come as draws, with
        variance 0: (S, len(x), Q).
        """
        torch, _ = import_torch()
        x = inputs_for(x, self.n_columns, "float64")
        draws = torch.from_numpy(normal_draws(self.n_features)[:_N_PREDICTION_DRAWS])
        is_single = self.likelihood.n_latent == 1

        def compute(chunk: np.ndarray) -> Any:
            mean, variance = self._module(torch.from_numpy(chunk))
            if is_single:
                return self._module.mixed(mean, variance)
            values = self._module.mix(mean + variance.sqrt() * draws[:, None, :])
            return values, torch.zeros_like(values)

        with torch_scope(0), torch.no_grad():
            return in_chunks(compute, x, _MAX_ROWS, axis=0 if is_single else 1)

    @cached_property
    def _module(self) -> Any:
        module = _module(self.n_columns, self.hidden, self.n_features, self.grid_size, self.likelihood.n_latent)
        load_parameters(module, self.parameters)
        return module.eval()


def fit_svdkl(
    x: np.ndarray,
    y: np.ndarray,
    likelihood: Likelihood | None = None,
    *,
    hidden: tuple[int, ...] = (100, 50),
    n_features: int = 2,
    grid_size: int = 64,
    steps: int = 2000,
    batch_size: int = 256,
    learning_rate: float = 0.01,
    seed: int = 0,
    progress: bool = False,
) -> SVDKL:
    """Deep kernel learning for numbers or classes, in float64.

    Parameters
    ----------
    x, y
        Scaled inputs (N, D), and standardised observations or class numbers (N,).
    likelihood
        Gaussian (the default), Bernoulli or Softmax.
    hidden
        Sizes of the network's hidden layers. Wilson et al. have (1000, 1000, 500, 50) for millions of rows.
    n_features, grid_size
        Outputs of the network, each with a GP of its own, and inducing points on the grid of each.
    steps, batch_size, learning_rate
        Of Adam on the bound, with a rate that falls to 0; the network has a tenth of it.
    """
    torch, _ = import_torch()
    x, y = pair_for(x, y, np.shape(x)[-1], "float64")
    likelihood = Gaussian(0.1) if likelihood is None else likelihood
    likelihood.check(y)
    if n_features < 1 or grid_size < 4 or any(size < 1 for size in hidden):
        raise SettingError(
            "SVDKL needs hidden layers of 1 or more, n_features of 1 or more and, for cubic interpolation, grid_size "
            f"of 4 or more; got {hidden}, {n_features} and {grid_size}."
        )
    settings = Settings(steps=steps, batch_size=batch_size, learning_rate=learning_rate, seed=seed, progress=progress)
    stream, clock = RowStream(len(x), settings.batch_size, seed), Clock()
    rows, targets = torch.from_numpy(x), torch.from_numpy(y)
    with torch_scope(seed), ProgressBar(settings.steps, settings.progress) as bar:
        module = _module(x.shape[1], tuple(hidden), n_features, grid_size, likelihood.n_latent).train()
        _start(module.gps)
        log_noise = torch.nn.Parameter(torch.tensor(float(getattr(likelihood, "log_noise", 0.0)), dtype=rows.dtype))
        expected_log_prob = _expected_log_prob(likelihood, module, log_noise)
        network = {"params": module.network.parameters(), "weight_decay": _DECAY, "lr": _NETWORK_RATE * learning_rate}
        others = [value for name, value in module.named_parameters() if not name.startswith("network.")]
        adam = torch.optim.Adam([network, {"params": [*others, log_noise]}], lr=learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, settings.steps)
        for step in range(settings.steps):
            batch = torch.from_numpy(stream.batches(step, 1)[0].astype(np.int64))
            adam.zero_grad()
            mean, variance = module(rows[batch])
            bound = expected_log_prob(targets[batch], mean, variance).mean() - module.kl() / len(x)
            if not torch.isfinite(bound):
                raise NumericalError("the bound is not finite; lower learning_rate.")
            (-bound).backward()
            adam.step()
            schedule.step()
            if (step + 1) % _SHOW_EVERY == 0 or step + 1 == settings.steps:
                bar.update(Report(step + 1, clock.seconds, bound.item()))
    if isinstance(likelihood, Gaussian):
        likelihood = Gaussian(float(np.exp(log_noise.item())))
    return SVDKL(likelihood, parameters_of(module), x.shape[1], tuple(hidden), n_features, grid_size)


def _start(gps: Any) -> None:
    """Give every GP a narrow q(u) around the identity.

    From the prior, where GPyTorch starts, training can end with GPs that stay there and a network that learns nothing.
    """
    torch, _ = import_torch()
    strategy = gps.variational_strategy
    q = strategy._variational_distribution
    with torch.no_grad():
        grid = strategy.inducing_points
        prior = gps.covariance(grid).to_dense() + _JITTER * torch.eye(len(grid), dtype=grid.dtype)
        q.variational_mean.copy_(grid[:, 0].expand_as(q.variational_mean))
        q.chol_variational_covar.copy_(_NARROW * torch.linalg.cholesky(prior))
        strategy.variational_params_initialized.fill_(1)


def _expected_log_prob(likelihood: Likelihood, module: Any, log_noise: Any) -> Callable[[Any, Any, Any], Any]:
    """E log p(y | f) under q, from targets and the moments of the g: this package's likelihoods in PyTorch."""
    torch, gpytorch = import_torch()
    match likelihood:
        case Gaussian():

            def gaussian(y: Any, mean: Any, variance: Any) -> Any:
                mean, variance = (part[:, 0] for part in module.mixed(mean, variance))
                return -0.5 * (np.log(2 * np.pi) + log_noise + ((y - mean) ** 2 + variance) / log_noise.exp())

            return gaussian
        case Bernoulli(link=link):
            log_prob = torch.special.log_ndtr if link == "probit" else torch.nn.functional.logsigmoid
            quadrature = gpytorch.utils.quadrature.GaussHermiteQuadrature1D().double()

            def bernoulli(y: Any, mean: Any, variance: Any) -> Any:
                mean, variance = (part[:, 0] for part in module.mixed(mean, variance))
                return quadrature(log_prob, torch.distributions.Normal((2.0 * y - 1.0) * mean, variance.sqrt()))

            return bernoulli
        case Softmax():

            def softmax(y: Any, mean: Any, variance: Any) -> Any:
                draws = torch.randn(_N_TRAINING_DRAWS, *mean.shape, dtype=mean.dtype)
                log_probs = module.mix(mean + variance.sqrt() * draws).log_softmax(dim=-1)
                return log_probs.mean(dim=0)[torch.arange(len(y)), y.long()]

            return softmax
    raise SettingError(f"SVDKL takes Gaussian, Bernoulli or Softmax, got {type(likelihood).__name__}.")


def _module(n_columns: int, hidden: tuple[int, ...], n_features: int, grid_size: int, n_latent: int) -> Any:
    """The model in PyTorch, before training."""
    torch, gpytorch = import_torch()

    class GPs(gpytorch.models.ApproximateGP):  # type: ignore[name-defined]
        """One GP on each feature."""

        def __init__(self) -> None:
            shape = torch.Size([n_features])
            q = gpytorch.variational.CholeskyVariationalDistribution(grid_size, batch_shape=shape)
            super().__init__(
                gpytorch.variational.GridInterpolationVariationalStrategy(self, grid_size, [(-1.0, 1.0)], q)
            )
            self.mean = gpytorch.means.ZeroMean(batch_shape=shape)
            self.covariance = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.RBFKernel(batch_shape=shape), batch_shape=shape
            )

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

    class Module(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            sizes = [n_columns, *hidden]
            layers = [layer for two in pairwise(sizes) for layer in (torch.nn.Linear(*two), torch.nn.ReLU())]
            self.network = torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], n_features), torch.nn.Tanh())
            self.gps = GPs()
            self.mix = torch.nn.Linear(n_features, n_latent)

        def forward(self, x: Any) -> Any:
            """Mean and variance of each g at each row, (B, J)."""
            g = self.gps(self.network(x).T[:, :, None])
            return g.mean.T, g.variance.T

        def mixed(self, mean: Any, variance: Any) -> Any:
            """Mean and variance of each latent function, (B, Q)."""
            return self.mix(mean), variance @ (self.mix.weight**2).T

        def kl(self) -> Any:
            return self.gps.variational_strategy.kl_divergence().sum()

    return Module().double()
