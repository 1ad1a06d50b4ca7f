"""Models from their files."""

from pathlib import Path
from typing import Any

from swsgp.errors import ModelFileError
from swsgp.estimators.classifier import SWSGPClassifier
from swsgp.estimators.regressor import SWSGPRegressor
from swsgp.fitted import checked
from swsgp.serialization import read


def load(path: Any) -> SWSGPRegressor | SWSGPClassifier:
    """A model that `save` or `swsgp fit` has put in a file.

    Nothing in the file is run. A file that is damaged, or no model, gives a `ModelFileError`.
    """
    path = Path(path)
    content, header = read(path)
    estimators = {kind.__name__: kind for kind in (SWSGPRegressor, SWSGPClassifier)}
    name = header.get("estimator")
    if header.get("kind") != "model" or name not in estimators:
        raise ModelFileError(f"{path} is a file of swsgp, but not a model; name the model's file.")
    fitted = checked(content["fitted"], str(path))
    try:
        model = estimators[name](**content["parameters"])
    except TypeError as error:
        raise ModelFileError(f"{path} is damaged ({error}); use another copy.") from None
    model.keep(fitted)
    return model
