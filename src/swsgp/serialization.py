"""Records of this package to bytes and back: arrays as safetensors, everything else as JSON in its header.

Only the classes named here are ever made from a file, from plain values, and nothing in a file is run.
"""

import hashlib
import json
import math
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from swsgp import __version__
from swsgp.errors import DataError, ModelFileError

FORMAT = 1
_KEY = "swsgp"
# Found by name when needed, so that a look into a file does not bring in JAX.
_HOMES = {
    "swsgp.baselines.deep_features": ("DeepFeatures", "Layer"),
    "swsgp.baselines.exact": ("FullGP", "Prior"),
    "swsgp.baselines.local_gps": ("LocalGPs",),
    "swsgp.data.scaling": ("Scaling",),
    "swsgp.data.tables": ("Encoding",),
    "swsgp.fitted": ("Fitted",),
    "swsgp.yardsticks": ("Yardsticks",),
    "swsgp.gp.active": ("All", "PerPoint", "Union"),
    "swsgp.gp.covariances": (
        "Matern",
        "Matern12",
        "Matern32",
        "Matern52",
        "RBF",
        "RationalQuadratic",
        "Linear",
        "Constant",
        "Sum",
        "Product",
        "Columns",
    ),
    "swsgp.gp.landmarks": ("Landmarks",),
    "swsgp.gp.likelihoods": ("Bernoulli", "Gaussian", "Poisson", "Softmax", "StudentT"),
    "swsgp.gp.model": ("SparseGP",),
    "swsgp.gp.variational": ("Diagonal", "Full"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_LIBRARIES = ("jax", "equinox", "numpy", "scipy", "scikit-learn", "pyarrow", "safetensors")


def to_bytes(content: Any, header: dict[str, Any]) -> bytes:
    """A record, with plain facts beside it that can be read without it."""
    arrays: dict[str, np.ndarray] = {}
    described = _describe(content, "content", arrays)
    body = {"format": FORMAT, "versions": versions(), **header, "content": described}
    text = json.dumps(body, allow_nan=False, default=_plain)
    whole = json.dumps({"digest": _digest(json.loads(text), arrays), **json.loads(text)})
    return safetensors.numpy.save(arrays, metadata={_KEY: whole})


def versions() -> dict[str, str]:
    """Of this package and of the libraries that its results depend on."""
    return {"swsgp": __version__, **{name: version(name) for name in _LIBRARIES}}


def from_bytes(data: bytes, source: str = "the data") -> tuple[Any, dict[str, Any]]:
    """The record and the header of what `to_bytes` gave."""
    header = _header(data, source)
    try:
        arrays = safetensors.numpy.load(data)
        if header["digest"] != _digest({key: part for key, part in header.items() if key != "digest"}, arrays):
            raise ModelFileError(f"{source} is damaged: it is not what was written; use another copy.")
        return _build(header["content"], arrays), header
    except ModelFileError:
        raise
    # Whatever a damaged header leads to is the file's fault.
    except Exception as error:
        raise ModelFileError(f"{source} is damaged ({type(error).__name__}: {error}); use another copy.") from None


def read(path: Path) -> tuple[Any, dict[str, Any]]:
    """The record and the header in a file."""
    return from_bytes(path.read_bytes(), str(path))


def read_header(path: Path) -> dict[str, Any]:
    """The header of a file alone."""
    return _header(path.read_bytes(), str(path))


def _header(data: bytes, source: str) -> dict[str, Any]:
    try:
        # Checks the sizes of all arrays against the length of the file, too.
        safetensors.deserialize(data)
        length = int.from_bytes(data[:8], "little")
        text = json.loads(data[8 : 8 + length]).get("__metadata__", {})[_KEY]
        header = json.loads(text)
        written = int(header["format"])
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f"{source} is not a whole file of swsgp ({type(error).__name__}: {error}); "
            "check the name, or use another copy."
        ) from None
    if written > FORMAT:
        raise ModelFileError(
            f"{source} was written by swsgp {header.get('versions', {}).get('swsgp')} in format {written}, newer than "
            f"this version's {FORMAT}; update swsgp."
        )
    return dict(header)


def _digest(body: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """Changes with any bit of a file's content."""
    digest = hashlib.sha256(json.dumps(body).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise DataError(f"{value!r} cannot be saved.")


def _describe(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_describe(part, f"{name}.{i}", arrays) for i, part in enumerate(value)]
    if is_dataclass(value) and _HOME_OF.get(type(value).__name__) == type(value).__module__:
        parts = {f.name: _describe(getattr(value, f.name), f"{name}.{f.name}", arrays) for f in fields(value)}
        return {"class": type(value).__name__, "fields": parts}
    if isinstance(value, dict):
        return {"mapping": {key: _describe(part, f"{name}.{key}", arrays) for key, part in value.items()}}
    array = np.asarray(value)
    if array.dtype.kind in "biuf":
        arrays[name] = np.array(array, order="C")
        return {"array": name}
    if array.dtype.kind in "UO" and all(isinstance(text, str) for text in array.flat):
        return {"text": array.tolist(), "is_object": array.dtype.kind == "O"}
    raise DataError(f"{name.removeprefix('content.')} cannot be saved: values of type {array.dtype}.")


def _build(described: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(described, list):
        return tuple(_build(part, arrays) for part in described)
    if not isinstance(described, dict):
        return described
    if "class" in described:
        name = described["class"]
        if name not in _HOME_OF:
            raise ModelFileError(f"the file names a class {str(name)[:40]!r} that swsgp does not have; update swsgp.")
        kind = getattr(import_module(_HOME_OF[name]), name)
        record = object.__new__(kind)
        for field in fields(kind):
            object.__setattr__(record, field.name, _build(described["fields"][field.name], arrays))
        return record
    if "mapping" in described:
        return {key: _build(part, arrays) for key, part in described["mapping"].items()}
    if "float" in described:
        return float(described["float"])
    if "text" in described:
        return np.array(described["text"], dtype=object if described["is_object"] else None)
    return arrays[described["array"]]
