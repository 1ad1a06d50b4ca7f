"""What the baselines on GPyTorch share: the optional import, and parameters as plain arrays."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from swsgp.errors import SettingError


def import_torch() -> tuple[Any, Any]:
    """The modules torch and gpytorch, or advice on how to install them."""
    try:
        with warnings.catch_warnings():
            # GPyTorch's linear_operator uses parts of PyTorch that are going away: no news for our users.
            warnings.simplefilter("ignore", DeprecationWarning)
            torch, gpytorch = import_module("torch"), import_module("gpytorch")
    except ImportError as error:
        raise SettingError(
            f'this model needs PyTorch and GPyTorch, and {error.name} is missing; run: pip install "swsgp[baselines]"'
        ) from None
    return torch, gpytorch


@contextmanager
def torch_scope(seed: int) -> Iterator[None]:
    """A scope with random numbers of its own; the caller's go on afterwards as if nothing had happened.

    What linear_operator makes PyTorch warn about is kept back, as it is when it is imported.
    """
    torch, _ = import_torch()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="linear_operator")
        torch.manual_seed(seed)
        yield


def parameters_of(module: Any) -> dict[str, np.ndarray]:
    """Everything that a module has learned, by name."""
    return {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}


def load_parameters(module: Any, parameters: dict[str, np.ndarray]) -> None:
    """Give a module what another one has learned."""
    torch, _ = import_torch()
    module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in parameters.items()})
