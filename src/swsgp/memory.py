"""Whether what was asked for fits into memory, said before it is tried."""

from pathlib import Path

from swsgp.errors import SettingError

_MEMINFO = Path("/proc/meminfo")


def check_memory(what: str, n_bytes: float, advice: str) -> None:
    """Refuse `what` if it takes more memory than there is; where the system does not tell, nothing is refused."""
    available = _available()
    if available is not None and n_bytes > available:
        raise SettingError(
            f"{what} takes about {_words(n_bytes)} of memory, and {_words(available)} are free; {advice}."
        )


def _words(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.1f} MB"


def _available() -> float | None:
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024.0 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable")), None)
