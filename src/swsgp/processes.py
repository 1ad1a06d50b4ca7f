"""Several processes that train one model together, through JAX's distributed runtime.

All call the same functions with the same table, and each does its share: of every batch of rows, of the search for
neighbours, of the sums of the closed form. The first one decides where clocks or rounding might differ, and writes
files. Without `join` there is one process, and nothing here does anything.
"""

import atexit
import ctypes
import hashlib
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from swsgp import watching
from swsgp.errors import SettingError
from swsgp.watching import LastWords, Watch

# Seconds for all processes to come together.
_START = 120
# Seconds after which the runtime itself ends a process that the first one does not answer.
_RUNTIME = 40
# Seconds for which a process that is done waits for the others.
_END = 7 * 24 * 3600
# Seconds for which the first process stays on after a failure, so that the others can say what they saw.
_LAST_WORDS = 3.0
T = TypeVar("T")


def join(coordinator: str | None = None, n_processes: int | None = None, process: int | None = None) -> None:
    """Make this process one of several that train together; to be called first, in each of them.

    Parameters
    ----------
    coordinator
        Address and port of the first process, as "10.0.0.1:9876". Under SLURM and Open MPI all three are known and may
        be left out.
    n_processes, process
        How many there are, and which one this is, from 0.

    Every `fit` after this is one of all processes, each of which must call it with the same table and settings. Ctrl-C
    in one of them interrupts all. A process that dies or hangs ends the others within a minute, with a message that
    names it; one that is alive and keeps the others waiting, after half an hour. At the end each waits for all others.
    """
    global _watch
    if _watch is not None:
        raise SettingError("this process has joined others already.")
    if coordinator is not None and not re.fullmatch(r".+:\d+", coordinator):
        raise SettingError(f"a coordinator is an address and a port, as 10.0.0.1:9876, got {coordinator!r}.")
    # Otherwise the runtime keeps SIGTERM to itself.
    jax.config.update("jax_enable_preemption_service", False)
    where = "the first one" if coordinator is None else coordinator
    words = LastWords(
        f"swsgp: not all processes came to {where} within {_START} seconds; start them all, with one address."
    )
    try:
        jax.distributed.initialize(
            coordinator,
            n_processes,
            process,
            initialization_timeout=_START,
            heartbeat_timeout_seconds=_RUNTIME,
            shutdown_timeout_seconds=_END,
        )
    except ValueError as error:
        raise SettingError(
            "which processes train together is not known: start them by SLURM or Open MPI, or give each of them the "
            f"address of the first one, how many they are, and its number ({error})"
        ) from None
    except RuntimeError as error:
        raise SettingError(f"the processes did not come together: {str(error).splitlines()[0]}") from None
    finally:
        words.all_is_well()
    devices = Counter(device.process_index for device in jax.devices())
    if len(set(devices.values())) > 1:
        raise SettingError(f"processes need the same number of devices each, and have {sorted(devices.values())}.")
    _watch = Watch(coordinator, lambda: fail(1))
    atexit.register(leave)
    with without_stdout():
        agreed(np.zeros(()))


def leave() -> None:
    """Wait for the others to be done, too."""
    global _watch
    if _watch is not None:
        watch, _watch = _watch, None
        watch.close()
        with suppress(RuntimeError):
            jax.distributed.shutdown()
        watch.last_words.all_is_well()


def fail(code: int) -> None:
    """End at once after an error that has been said, if there are other processes, which may wait for this one."""
    if _watch is not None and count() > 1:
        _watch.last_words.say_nothing()
        sys.stderr.flush()
        if is_first():
            time.sleep(_LAST_WORDS)
        os._exit(code)


@contextmanager
def removing(folder: Path) -> Iterator[None]:
    """A folder that is gone, too, if this process ends because another one does."""
    watch = _watch
    if watch is None:
        yield
        return
    watch.last_words.remove_at_the_end(folder)
    try:
        yield
    finally:
        watch.last_words.remove_at_the_end(None)


@contextmanager
def interruptible() -> Iterator[None]:
    """Around training: Ctrl-C in one of several processes is heard where all agree on what comes next.

    A second one ends the process.
    """
    global _interrupted
    if count() == 1 or threading.current_thread() is not threading.main_thread():
        yield
        return
    _interrupted = False
    before = signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
        _interrupted = False


def _interrupt(signal_number: int, frame: Any) -> None:
    global _interrupted
    if _interrupted:
        raise KeyboardInterrupt
    _interrupted = True


def interrupted() -> bool:
    """Whether Ctrl-C was pressed in any of several processes; heard once."""
    global _interrupted
    if count() == 1:
        return False
    found = bool(summed(int(_interrupted)))
    # One that comes while they talk is heard the next time.
    if found:
        _interrupted = False
    return found


def stop_if_interrupted() -> None:
    """Raise in all processes what Ctrl-C raises in one."""
    if interrupted():
        raise KeyboardInterrupt


def check_same(what: str, *contents: np.ndarray | str) -> None:
    """Refuse to go on if some arrays or texts are not those of the first process."""
    if count() == 1:
        return
    digest = hashlib.blake2b(digest_size=16)
    for content in contents:
        digest.update(content.encode() if isinstance(content, str) else np.ascontiguousarray(content).data)
    with waiting():
        digests = np.asarray(multihost_utils.process_allgather(np.frombuffer(digest.digest(), np.uint8)))
    differ = (digests != digests[0]).any(axis=1)
    if differ.any():
        verb = "are not those" if what.endswith("s") else "is not that"
        raise SettingError(f"{what} of process {int(np.argmax(differ))} {verb} of process 0.")


def count() -> int:
    """How many processes train together."""
    return 1 if _watch is None else jax.process_count()


def number() -> int:
    """Which of them this is, from 0."""
    return 0 if _watch is None else jax.process_index()


def is_first() -> bool:
    return number() == 0


def agreed(values: np.ndarray | float | int) -> np.ndarray:
    """The first process's numbers, in every process."""
    values = np.asarray(values)
    if count() == 1:
        return values
    with waiting(), jax.enable_x64(True):
        return np.asarray(multihost_utils.broadcast_one_to_all(values))


def agreed_arrays(tree: T) -> T:
    """A model with the first process's arrays: those of others may differ by rounding."""
    if count() == 1:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(
        structure, [jnp.asarray(agreed(np.asarray(leaf))) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
    )


def agreed_bytes(content: bytes | None) -> bytes | None:
    """The first process's bytes, or None, in every process."""
    if count() == 1:
        return content
    n = int(agreed(-1 if content is None else len(content)))
    if n < 0:
        return None
    own = np.frombuffer(content, np.uint8) if is_first() and content is not None else np.zeros(n, np.uint8)
    return agreed(own).tobytes()


def in_first(check: Callable[[], None]) -> None:
    """Do something in the first process alone; if it fails there, the others end, too, and leave the word to it."""
    error: Exception | None = None
    if is_first():
        try:
            check()
        except Exception as found:
            error = found
    failed = bool(agreed(error is not None))
    if error is not None:
        raise error
    if failed:
        fail(1)


def summed(values: np.ndarray | float | int) -> np.ndarray:
    """The sum of all processes' numbers, in every process."""
    values = np.asarray(values)
    if count() == 1:
        return values
    with waiting(), jax.enable_x64(True):
        return np.asarray(multihost_utils.process_allgather(values)).sum(axis=0)


@contextmanager
def waiting() -> Iterator[None]:
    """Around work that only goes on if all processes take part."""
    if _watch is None:
        yield
        return
    _watch.wait_from_now()
    try:
        yield
    except Exception:
        # If another process has ended, the watch says which, and ends this one.
        time.sleep(watching.SILENT + 5 * watching.EVERY)
        raise
    finally:
        _watch.go_on()


@contextmanager
def without_stdout() -> Iterator[None]:
    """Libraries that come together say so on standard output, which is for results."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        # What they have said is still in a buffer of C.
        if os.name == "posix":
            ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


_watch: Watch | None = None
_interrupted = False
