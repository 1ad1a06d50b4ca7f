"""Rows on disk, in parts that fit into memory: what a table that does not is turned into before training."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from swsgp.errors import DataError
from swsgp.files import replacing


class Store:
    """Scaled rows, shuffled into parts, each in a file of its own in one folder.

    Each part has rows from all over the table. Arrays that belong to a part may be kept beside it.
    """

    def __init__(self, folder: Path, sizes: list[int], n_columns: int, precision: str, digest: str):
        self.sizes, self.precision, self.digest = sizes, precision, digest
        self._folder, self._n_columns = folder, n_columns

    @classmethod
    def write(
        cls, folder: Path, rows: Iterable[tuple[np.ndarray, np.ndarray]], n_parts: int, precision: str, seed: int
    ) -> "Store":
        """Make one of rows (x, y) that come in blocks."""
        rng = np.random.default_rng((seed, 7))
        sizes, digest, n_columns, n_seen = np.zeros(n_parts, dtype=int), hashlib.blake2b(digest_size=16), 0, 0
        digest.update(str(n_parts).encode())
        for x, y in rows:
            block = np.concatenate([x, y[:, None]], axis=1).astype(precision)
            n_columns = x.shape[1]
            digest.update(block.tobytes())
            # Dealt out evenly, in random order.
            to = rng.permutation(np.arange(n_seen, n_seen + len(block)) % n_parts)
            n_seen += len(block)
            order = np.argsort(to, kind="stable")
            counts = np.bincount(to, minlength=n_parts)
            for part, own in enumerate(np.split(block[order], np.cumsum(counts)[:-1])):
                # One file at a time is open: there may be thousands.
                with _file(folder, part).open("ab") as file:
                    file.write(own.tobytes())
            sizes += counts
        return cls(folder, [int(size) for size in sizes], n_columns, precision, digest.hexdigest())

    @property
    def n_rows(self) -> int:
        return sum(self.sizes)

    def part(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """x and y of a part."""
        rows = self._read(
            _file(self._folder, number), np.dtype(self.precision), (self.sizes[number], self._n_columns + 1)
        )
        return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, -1])

    def keep(self, number: int, array: np.ndarray) -> None:
        """Put int32 numbers (rows of the part, H) beside a part, in the place of those that are there."""
        with replacing(_file(self._folder, number, "kept")) as new:
            array.astype(np.int32).tofile(new)

    def kept(self, number: int, width: int) -> np.ndarray:
        """The numbers that are beside a part."""
        return self._read(_file(self._folder, number, "kept"), np.dtype(np.int32), (self.sizes[number], width))

    @staticmethod
    def _read(path: Path, dtype: np.dtype, shape: tuple[int, int]) -> np.ndarray:
        try:
            found = np.fromfile(path, dtype)
        except OSError as error:
            raise DataError(f"{path}, which holds rows during training, cannot be read: {error.strerror}.") from None
        if found.size != shape[0] * shape[1]:
            raise DataError(f"{path}, which holds rows during training, is not whole any more.")
        return found.reshape(shape)


def _file(folder: Path, part: int, kind: str = "rows") -> Path:
    return folder / f"part-{part:05d}.{kind}"
