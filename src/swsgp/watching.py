"""How one of several processes notices that another has died or hangs, and says what has become of itself."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax

# Seconds between two signs of life; without one for so long a process is taken for dead, and one that is alive may keep
# the others waiting for so long.
EVERY, SILENT, LATE = 1.0, 20.0, 1800.0
_WAY_ON = "--resume goes on from the last checkpoint, with any number of processes."


class LastWords:
    """A shell that says what has become of this process, and removes a folder, unless it is told that all is well.

    The runtime ends a process without a word of ours where the first process does not answer.
    """

    _SCRIPT = """
trap "" INT TERM
words=$0
while IFS= read -r line; do
  case "$line" in
    "all is well") exit ;;
    "say nothing") words= ;;
    *) folder=$line ;;
  esac
done
[ -z "$words" ] || echo "$words" >&2
[ -z "$folder" ] || rm -rf -- "$folder"
"""

    def __init__(self, words: str):
        self._shell: subprocess.Popen[bytes] | None = None
        if os.name == "posix":
            command = ["sh", "-c", self._SCRIPT, words]
            self._shell = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def remove_at_the_end(self, folder: Path | None) -> None:
        # Lines are what the shell reads.
        path = "" if folder is None else str(folder.absolute())
        self._tell("" if "\n" in path else path)

    def say_nothing(self) -> None:
        """It has been said."""
        self._tell("say nothing")

    def all_is_well(self) -> None:
        self._tell("all is well")
        if self._shell is not None:
            with suppress(subprocess.TimeoutExpired):
                self._shell.wait(1)

    def _tell(self, line: str) -> None:
        if self._shell is not None and self._shell.stdin is not None:
            # It may have ended.
            with suppress(OSError, ValueError):
                self._shell.stdin.write(f"{line}\n".encode())
                self._shell.stdin.flush()


class Watch:
    """A thread that says to the other processes that this one is alive, and ends it if one of them is not.

    Signs of life are numbers in the runtime's own store of keys and values, which the first process keeps. If that one
    is gone the runtime ends this process itself.
    """

    def __init__(self, coordinator: str | None, end: Callable[[], None]):
        # What jax.distributed.initialize has made; there is no public way to its store.
        from jax._src import distributed

        self._client: Any = distributed.global_state.client
        self._me, self._n = jax.process_index(), jax.process_count()
        self._end_process, self._n_waits = end, 0
        self._since: float | None = None
        self._ended = threading.Event()
        self._first = f"process 0 (at {coordinator or distributed.global_state.coordinator_address})"
        self.last_words = LastWords(
            f"swsgp: process {self._me} of {self._n} has ended: {self._first} died or hangs, or this one was killed. "
            f"{_WAY_ON}"
            if self._me > 0
            else ""
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_from_now(self) -> None:
        self._n_waits += 1
        self._since = time.monotonic()

    def go_on(self) -> None:
        self._since = None

    def close(self) -> None:
        self._ended.set()
        self._thread.join(5 * EVERY)
        # The first process may be gone.
        with suppress(Exception):
            self._client.key_value_set(f"swsgp/{self._me}", "left", allow_overwrite=True)

    def _run(self) -> None:
        beat, started = 0, time.monotonic()
        heard = {other: (f"0 0 {other}", started) for other in range(self._n) if other != self._me}
        while not self._ended.wait(EVERY):
            beat += 1
            own = f"{beat} {self._n_waits} {os.getpid()} on {socket.gethostname()}"
            try:
                self._client.key_value_set(f"swsgp/{self._me}", own, allow_overwrite=True)
                values = dict(self._client.key_value_dir_get("swsgp/"))
            except Exception:
                if not self._ended.is_set():
                    self._end(f"{self._first}, which keeps the others together, does not answer")
                return
            now = time.monotonic()
            for other, (before, when) in heard.items():
                value = values.get(f"swsgp/{other}", before)
                if value != before:
                    heard[other] = (value, now)
                elif fault := self._fault(value, now - when, now):
                    _, _, who = value.partition(" ")[2].partition(" ")
                    self._end(f"process {other} of {self._n}{f' (process id {who})' if ' on ' in who else ''} {fault}")

    def _fault(self, value: str, silent_for: float, now: float) -> str:
        waited = 0.0 if self._since is None else now - self._since
        if value == "left":
            return "has ended before its work was done" if waited > SILENT else ""
        if silent_for > SILENT:
            return f"has not answered for {SILENT:.0f} seconds: it died or hangs"
        if waited > LATE and int(value.split()[1]) < self._n_waits:
            return f"has kept the others waiting for {LATE / 60:.0f} minutes"
        # All wait, for something that does not come.
        return f"has not gone on for {LATE / 60:.0f} minutes" if waited > 2 * LATE else ""

    def _end(self, fault: str) -> None:
        print(
            f"swsgp: {fault}. This process ({self._me} of {self._n}) ends, too. {_WAY_ON}",
            file=sys.stderr,
            flush=True,
        )
        self._end_process()
