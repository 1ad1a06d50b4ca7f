"""Gaussian processes for large tables: sparse within sparse, with calibrated uncertainty."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Loaded when first used: importing the package alone brings in neither JAX nor matplotlib.
_HOMES = {
    "swsgp.data.scaling": ("Scaling",),
    "swsgp.data.sets": ("load_set",),
    "swsgp.estimators.classifier": ("SWSGPClassifier",),
    "swsgp.estimators.loading": ("load",),
    "swsgp.estimators.regressor": ("SWSGPRegressor",),
    "swsgp.fit.loop": ("Trained", "train"),
    "swsgp.fit.settings": ("Settings",),
    "swsgp.fit.stopping": ("Report",),
    "swsgp.gp.active": ("All", "PerPoint", "Union"),
    "swsgp.gp.covariances": (
        "RBF",
        "Columns",
        "Constant",
        "Linear",
        "Matern",
        "Matern12",
        "Matern32",
        "Matern52",
        "RationalQuadratic",
    ),
    "swsgp.gp.likelihoods": ("Bernoulli", "Gaussian", "Poisson", "Softmax", "StudentT"),
    "swsgp.gp.model": ("SparseGP", "bound", "create"),
    "swsgp.gp.prediction": ("Predictor",),
    "swsgp.processes": ("join",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'swsgp' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
