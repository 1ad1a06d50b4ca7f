"""The state of a training run on disk, to go on from where it was interrupted or killed."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from swsgp import processes
from swsgp.errors import ModelFileError, SettingError
from swsgp.files import write
from swsgp.fit.settings import Settings
from swsgp.fit.step import State
from swsgp.fit.stopping import Report
from swsgp.gp.covariances import Covariance
from swsgp.gp.model import SparseGP
from swsgp.serialization import from_bytes, read_header, to_bytes

# Seconds between two checkpoints.
_EVERY = 20.0
# Another one for each change in what a state is made of, or in what the next steps are.
_LAYOUT = 5
# Settings that do not change what a step does.
_MAY_DIFFER = ("progress", "time_budget")


@dataclass(frozen=True)
class Snapshot:
    """All that a run needs to go on as if nothing had happened.

    `metric` is the covariance by which the present neighbours were found, `refresh_at` the step at which they are
    searched again; the best model is the one that the held-out rows liked best so far.
    """

    step: int
    seconds: float
    refresh_at: int
    rate_factor: float
    n_worse: int
    best_score: float
    state: State
    jitter: Any
    metric: Covariance | None
    best_model: SparseGP | None


class Checkpoints:
    """The checkpoint file of one run; `run` says which, so that another run does not go on from it."""

    def __init__(self, path: Path, run: str):
        if processes.is_first() and path.exists() and read_header(path).get("kind") != "checkpoint":
            raise ModelFileError(f"{path} is not a checkpoint and would be overwritten; name another file.")
        # What the data are for the first process counts.
        self._path, self._run = path, (processes.agreed_bytes(run.encode()) or b"").decode()
        self._last = time.monotonic()

    def save_now_and_then(self, state: Any, history: Sequence[Report]) -> None:
        """Save if the last checkpoint is old enough."""
        if time.monotonic() - self._last >= _EVERY:
            self.save(state, history)

    def save(self, state: dict[str, Any], history: Sequence[Report]) -> None:
        """Replace the file; the one before stays whole until the new one is. `state` has the number of the `step`.

        Of several processes the first one does.
        """
        if not processes.is_first():
            return
        arrays = {name: tuple(jax.tree.leaves(part)) for name, part in state.items()}
        reports = [(r.step, r.seconds, r.bound, np.nan if r.score is None else r.score) for r in history]
        arrays["history"] = (np.array(reports, dtype=np.float64).reshape(-1, 4),)
        write(self._path, to_bytes(arrays, {"kind": "checkpoint", "run": self._run, "step": state["step"]}))
        self._last = time.monotonic()

    def load(self, templates: dict[str, Any]) -> tuple[dict[str, Any], list[Report]] | None:
        """The state in the file, each part in the form of its template, and the history; None if there is no file.

        A part that was None when it was saved is None again.
        """
        content = self._path.read_bytes() if processes.is_first() and self._path.exists() else None
        content = processes.agreed_bytes(content)
        if content is None:
            return None
        arrays, header = from_bytes(content, str(self._path))
        if header.get("run") != self._run:
            raise SettingError(
                f"the checkpoint {self._path} is of another run (other data, settings or version of swsgp); remove it, "
                "or repeat the command that it came from."
            )
        state = {name: _filled(template, arrays[name]) for name, template in templates.items()}
        history = [
            Report(int(step), seconds, bound, None if np.isnan(score) else score)
            for step, seconds, bound, score in arrays["history"][0].tolist()
        ]
        return state, history


def _filled(template: Any, leaves: tuple[Any, ...]) -> Any:
    """The template with other leaves: numbers as they are, arrays on the device."""
    if not leaves:
        return None
    old, structure = jax.tree.flatten(template)
    new = [jnp.asarray(leaf) if isinstance(was, jax.Array) else leaf for was, leaf in zip(old, leaves, strict=True)]
    return jax.tree.unflatten(structure, new)


def run_name(start: Any, settings: Settings, *data: np.ndarray) -> str:
    """A digest of everything that decides how a run goes: what is learned at its start, the settings and the data."""
    digest = hashlib.blake2b(digest_size=16)
    leaves, structure = jax.tree.flatten(start)
    asked = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name not in _MAY_DIFFER}
    digest.update(repr((_LAYOUT, structure, sorted(asked.items()), [array.shape for array in data])).encode())
    for array in (*leaves, *data):
        digest.update(np.asarray(array).tobytes())
    return digest.hexdigest()
