"""The experiments by name."""

import os
from importlib import import_module
from pathlib import Path
from types import ModuleType

from rich.console import Console

from swsgp.errors import DataError, SettingError
from swsgp.experiments.study import Study

NAMES = (
    "prior",
    "posterior-1d",
    "m-and-h",
    "running-time",
    "large-m",
    "deep",
    "local-gps",
    "joint-covariance",
    "metric",
)


def module(name: str) -> ModuleType:
    if name not in NAMES:
        raise SettingError(f"there is no experiment {name!r}; there are {', '.join(NAMES)}, and all.")
    return import_module(f"swsgp.experiments.{name.replace('-', '_')}")


def reproduce(name: str, level: str, data: Path | None, out: Path, console: Console) -> None:
    """Run one experiment, or all. Those whose data are not there leave out what needs them, and say so at the end."""
    if data is not None:
        if not data.is_dir():
            raise SettingError(f"there is no folder {data}; name the one that has the data sets with --data.")
        os.environ["SWSGP_DATA"] = str(data)
    names = NAMES if name == "all" else (name,)
    modules = [module(one) for one in names]
    missing = []
    for one, experiment in zip(names, modules, strict=True):
        console.print(f"{one}: {experiment.TITLE} ({level})", highlight=False, soft_wrap=True)
        study = Study(one, out, level, console)
        try:
            experiment.run(study)
        except DataError as error:
            if len(names) == 1:
                raise
            missing.append(f"{one}: {error}")
        else:
            missing += [f"{one}: {reason}" for reason in study.missing]
        if study.was_interrupted:
            raise KeyboardInterrupt
    if missing:
        raise DataError(f"not everything could be run. {' '.join(missing)}")
