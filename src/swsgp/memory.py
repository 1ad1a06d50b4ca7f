"""Whether what was asked for fits into memory, said before it is tried."""

from collections.abc import Iterator
from pathlib import Path

import jax

from swsgp.errors import SettingError

_MEMINFO, _OWN_GROUPS, _GROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def check_memory(what: str, n_bytes: float, advice: str) -> None:
    """Refuse `what` if it takes more memory than there is; where the system does not tell, nothing is refused."""
    _check(what, n_bytes, min([*_free_in_machine(), *_free_in_groups()], default=None), "are free", advice)


def check_device_memory(what: str, n_bytes: float, advice: str) -> None:
    """The same for the memory of a GPU, if there is one; that of a CPU is the machine's."""
    stats = jax.local_devices()[0].memory_stats() or {}
    free = float(stats["bytes_limit"] - stats["bytes_in_use"]) if "bytes_limit" in stats else None
    _check(what, n_bytes, free, "are free on the device", advice)


def _check(what: str, n_bytes: float, free: float | None, are_free: str, advice: str) -> None:
    if free is not None and n_bytes > free:
        raise SettingError(f"{what} takes about {_words(n_bytes)} of memory, and {_words(free)} {are_free}; {advice}.")


def _words(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.1f} MB"


def _free_in_machine() -> Iterator[float]:
    for line in _lines(_MEMINFO):
        if line.startswith("MemAvailable"):
            yield 1024.0 * float(line.split()[1])


def _free_in_groups() -> Iterator[float]:
    """What the limits of containers and of batch systems leave: those of this process's group and of all above it."""
    for line in _lines(_OWN_GROUPS):
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            top, names = _GROUPS, ("memory.max", "memory.current", "{}active_file")
        elif "memory" in kinds.split(","):
            top, names = _GROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_{}active_file")
        else:
            continue
        own = top / path.lstrip("/")
        # Seen from within a container its own group may be the top.
        for folder in {top, own, *(parent for parent in own.parents if parent.is_relative_to(top))}:
            limit, used = (_lines(folder / name) for name in names[:2])
            if limit and used and limit[0].isdigit():
                # Files that were read stay in memory only until it is wanted.
                stat = dict(line.split() for line in _lines(folder / "memory.stat"))
                of_files = sum(float(stat.get(names[2].format(part), 0)) for part in ("in", ""))
                yield float(limit[0]) - float(used[0]) + of_files


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
