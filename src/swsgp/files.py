"""Files that are written whole or not at all."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new empty file beside `path` to write to; it takes the place of `path` at the end, unless something fails.

    Until then whatever was at `path` stays as it was, also on a full disk or if the program is killed.
    """
    new = _beside(path)
    try:
        with naming(path):
            yield new
            _flush(new)
        # A temporary file is private; a result has the rights of any other new file.
        new.chmod(0o666 & ~_umask())
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def write(path: Path, content: bytes) -> None:
    """Put `content` in the file, whole or not at all."""
    with replacing(path) as new:
        new.write_bytes(content)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error of the system that names no file names this one; NumPy says in its own words that a disk is full."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        number = errno.ENOSPC if " requested and " in str(error) else error.errno
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from None


def check_writable(path: Path) -> None:
    """Fail now, not after hours of work, if a file cannot be put at `path`."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file.")
    _beside(path).unlink()


def _beside(path: Path) -> Path:
    """A new empty file in the same folder; an error speaks of the file that the user named."""
    folder = path.absolute().parent
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=folder)
    except OSError as error:
        if not folder.is_dir():
            raise OSError(error.errno, "there is no such folder", str(folder)) from None
        raise OSError(error.errno, error.strerror, str(path)) from None
    os.close(handle)
    return Path(name)


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
