"""Rows on disk, in parts that fit into memory: what a table that does not is turned into before training."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from swsgp.errors import DataError
from swsgp.files import naming, replacing


class Store:
    """Scaled rows, shuffled into parts, each in a file of its own in one folder.

    Each part has rows from all over the table, about as many of one lane (see `RowStream`) as of another: `sizes` has a
    row for each part and a column for each lane. A store has the rows of the lanes `own` alone, if there are other
    processes that have the others. Arrays that belong to a part may be kept beside it.
    """

    def __init__(self, folder: Path, sizes: np.ndarray, own: range, n_columns: int, precision: str, digest: str):
        self.sizes, self.own, self.precision, self.digest = sizes, own, precision, digest
        self._folder, self._n_columns = folder, n_columns

    @classmethod
    def write(
        cls,
        folder: Path,
        rows: Iterable[tuple[np.ndarray, np.ndarray]],
        n_parts: int,
        precision: str,
        seed: int,
        n_lanes: int = 1,
        own: range | None = None,
    ) -> "Store":
        """Make one of all rows (x, y), which come in blocks."""
        own = range(n_lanes) if own is None else own
        rng = np.random.default_rng((seed, 7))
        sizes, digest, n_columns, n_seen = np.zeros((n_parts, n_lanes), int), hashlib.blake2b(digest_size=16), 0, 0
        digest.update(f"{n_parts} {n_lanes}".encode())
        for x, y in rows:
            lane = np.arange(n_seen, n_seen + len(x)) % n_lanes
            block = np.concatenate([x, y[:, None], lane[:, None]], axis=1).astype(precision)
            n_columns = x.shape[1]
            digest.update(block.tobytes())
            to = np.empty(len(block), int)
            for number in range(n_lanes):
                # Dealt out evenly, in random order.
                of_lane = to[(number - n_seen) % n_lanes :: n_lanes]
                of_lane[:] = rng.permutation((sizes[:, number].sum() + np.arange(len(of_lane))) % n_parts)
                sizes[:, number] += np.bincount(of_lane, minlength=n_parts)
            n_seen += len(block)
            kept = np.isin(lane, own)
            block, to = block[kept], to[kept]
            ends = np.cumsum(np.bincount(to, minlength=n_parts))
            for part, rows_of_part in enumerate(np.split(block[np.argsort(to, kind="stable")], ends[:-1])):
                # One file at a time is open: there may be thousands.
                path = _file(folder, part)
                with naming(path), path.open("ab") as file:
                    file.write(rows_of_part.tobytes())
        return cls(folder, sizes, own, n_columns, precision, digest.hexdigest())

    @property
    def n_rows(self) -> int:
        """Of all lanes."""
        return int(self.sizes.sum())

    def n_own(self, number: int) -> int:
        """Rows of a part that this store has."""
        return int(self.sizes[number, self.own].sum())

    def part(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """x and y of a part, lane after lane."""
        shape = (self.n_own(number), self._n_columns + 2)
        rows = self._read(_file(self._folder, number), np.dtype(self.precision), shape)
        rows = rows[np.argsort(rows[:, -1], kind="stable")]
        return np.ascontiguousarray(rows[:, :-2]), np.ascontiguousarray(rows[:, -2])

    def keep(self, number: int, array: np.ndarray) -> None:
        """Put int32 numbers (rows of the part, H) beside a part, in the place of those that are there."""
        with replacing(_file(self._folder, number, "kept")) as new:
            array.astype(np.int32).tofile(new)

    def kept(self, number: int, width: int) -> np.ndarray:
        """The numbers that are beside a part."""
        return self._read(_file(self._folder, number, "kept"), np.dtype(np.int32), (self.n_own(number), width))

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
