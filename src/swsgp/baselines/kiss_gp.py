r"""KISS-GP (Wilson and Nickisch 2015), on GPyTorch: an exact GP whose covariance is interpolated from a grid.

$K \approx W K_{GG} W^\top$ with K on the points of a regular grid and a sparse W of cubic interpolation weights:
products with it are cheap, and conjugate gradients need nothing else. A grid in many columns has too many points, so
the inputs are first projected linearly to two, and the projection is learned with the hyper-parameters.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from swsgp.arrays import inputs_for, pair_for
from swsgp.baselines.predictive import in_chunks
from swsgp.baselines.torch_parts import import_torch, load_parameters, parameters_of, torch_scope
from swsgp.errors import NumericalError, SettingError
from swsgp.fit.progress import ProgressBar
from swsgp.fit.settings import Settings
from swsgp.fit.stopping import Clock, Report
from swsgp.gp.likelihoods import Gaussian

# The training rows, projected, fill this much of the grid, which reaches from −1 to 1; points beyond it go to its edge.
_FILLED = 0.9
_MAX_ROWS = 1024
# Of conjugate gradients, as the norm of the residual, in training and in prediction.
_TOLERANCE, _FINE_TOLERANCE = 0.1, 1e-3


@dataclass(frozen=True)
class KissGP:
    """A fitted model: its training rows, and what was learned by its names in GPyTorch."""

    likelihood: Gaussian
    x: np.ndarray
    y: np.ndarray
    parameters: dict[str, np.ndarray]
    grid_size: int

    def latent(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of f at each point, (len(x), 1) each."""
        torch, gpytorch = import_torch()
        x = inputs_for(x, self.x.shape[1], "float64")

        def compute(chunk: np.ndarray) -> Any:
            found = self._module(torch.from_numpy(chunk))
            return found.mean.numpy()[:, None], found.variance.numpy()[:, None]

        with torch_scope(0), _products_only(), torch.no_grad(), gpytorch.settings.fast_pred_var():
            return in_chunks(compute, x, _MAX_ROWS)

    @cached_property
    def _module(self) -> Any:
        module = _module(self.x, self.y, self.grid_size)
        load_parameters(module, self.parameters)
        return module.eval()


def fit_kiss_gp(
    x: np.ndarray,
    y: np.ndarray,
    *,
    grid_size: int = 100,
    steps: int = 50,
    learning_rate: float = 0.1,
    seed: int = 0,
    progress: bool = False,
) -> KissGP:
    """KISS-GP regression with the RBF covariance on two learned projections, in float64.

    Parameters
    ----------
    x, y
        Scaled inputs (N, D) and standardised observations (N,).
    grid_size
        Points of the grid along each projection.
    steps, learning_rate
        Of Adam on the marginal likelihood of all rows. Which projections it finds depends on where it starts, and so
        on the seed.
    """
    torch, gpytorch = import_torch()
    x, y = pair_for(x, y, np.shape(x)[-1], "float64")
    if grid_size < 4:
        raise SettingError(f"grid_size must be 4 or more, for cubic interpolation, got {grid_size}.")
    settings = Settings(steps=steps, learning_rate=learning_rate, seed=seed, progress=progress)
    clock = Clock()
    with torch_scope(seed), _products_only(), ProgressBar(settings.steps, settings.progress) as bar:
        module = _module(x, y, grid_size).train()
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(module.likelihood, module)
        adam = torch.optim.Adam(module.parameters(), lr=settings.learning_rate)
        for step in range(settings.steps):
            adam.zero_grad()
            loss = -objective(module(*module.train_inputs), module.train_targets)
            if not torch.isfinite(loss):
                raise NumericalError("the marginal likelihood is not finite; lower learning_rate.")
            loss.backward()
            adam.step()
            bar.update(Report(step + 1, clock.seconds, -loss.item()))
    return KissGP(Gaussian(module.likelihood.noise.item()), x, y, parameters_of(module), grid_size)


@contextmanager
def _products_only() -> Iterator[None]:
    """Conjugate gradients as this covariance wants them: without a preconditioner, whose gradient costs more than all
    products together, and nearer to the solution instead.
    """
    _, gpytorch = import_torch()
    settings = gpytorch.settings
    tolerances = settings.cg_tolerance(_TOLERANCE), settings.eval_cg_tolerance(_FINE_TOLERANCE)
    with settings.max_preconditioner_size(0), tolerances[0], tolerances[1]:
        yield


def _module(x: np.ndarray, y: np.ndarray, grid_size: int) -> Any:
    """The model in GPyTorch, before training."""
    torch, gpytorch = import_torch()

    class Module(gpytorch.models.ExactGP):  # type: ignore[name-defined]
        def __init__(self) -> None:
            likelihood = gpytorch.likelihoods.GaussianLikelihood()
            super().__init__(torch.from_numpy(x), torch.from_numpy(y), likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.projection = torch.nn.Linear(x.shape[1], 2, bias=False)
            # The scale stays outside: the grid multiplies what is inside over its dimensions.
            self.covariance = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.GridInterpolationKernel(
                    gpytorch.kernels.RBFKernel(ard_num_dims=2),
                    grid_size=grid_size,
                    num_dims=2,
                    grid_bounds=((-1.0, 1.0), (-1.0, 1.0)),
                )
            )

        def forward(self, points: Any) -> Any:
            rows = self.projection(self.train_inputs[0])
            low, high = rows.min(dim=0).values, rows.max(dim=0).values
            width = (high - low).clamp(min=1e-6)
            projected = _FILLED * (2.0 * (self.projection(points) - low) / width - 1.0)
            return gpytorch.distributions.MultivariateNormal(
                self.mean(points), self.covariance(projected.clamp(-1.0, 1.0))
            )

    return Module().double()
