"""Columns brought to mean 0 and spread 1, and back."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from swsgp.arrays import as_inputs, as_target
from swsgp.errors import DataError

# Values beyond the 1% and 99% quantiles by more than their distance do not count for mean and spread.
_QUANTILES = (0.01, 0.99)
# Sizes that can be squared with digits to spare, and how far from the others a value may be, in their spreads.
_MAX_SIZE = 1e100
_MAX_REACH = 1e9


@dataclass(frozen=True)
class Scaling:
    """x ↦ (x − centre) / scale, column by column."""

    centre: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> "Scaling":
        """Mean and standard deviation of each column, of its plausible values only.

        A few wild values, such as the spikes of a broken sensor, would otherwise squeeze all others into a point.
        They are pulled to the edge of the plausible range for these two numbers; `apply` leaves them as they are.
        A column without spread keeps its unit.
        """
        values = as_target(values) if np.ndim(values) == 1 else as_inputs(values)
        low = np.quantile(values, _QUANTILES[0], axis=0, method="higher")
        high = np.quantile(values, _QUANTILES[1], axis=0, method="lower")
        # Where nearly all values are equal, the few others are what the column has to say.
        reach = np.where(high > low, high - low, np.inf)
        plausible = np.clip(values, low - reach, high + reach)
        # Squares of very large or small numbers are beyond what a number can be.
        unit = np.maximum(np.abs(plausible).max(axis=0), 1e-300)
        scale = (plausible / unit).std(axis=0) * unit
        centre = np.asarray((plausible / unit).mean(axis=0) * unit)
        # Rounding leaves a constant column of large values with a tiny spread.
        scale = np.where(scale > 1e-12 * np.abs(centre), scale, 1.0)
        return cls(centre, scale)

    def except_for(self, columns: np.ndarray) -> "Scaling":
        """The same, but with these columns left as they are."""
        return Scaling(np.where(columns, 0.0, self.centre), np.where(columns, 1.0, self.scale))

    def apply(self, values: np.ndarray) -> np.ndarray:
        return (values - self.centre) / self.scale

    def check_reach(self, values: np.ndarray, names: Sequence[str]) -> None:
        """Refuse columns with values that nothing can be computed with, each by its name."""
        values = values.reshape(len(values), -1)
        largest = np.abs(values).max(axis=0)
        for name, size, centre, scale in zip(names, largest, self.centre.flat, self.scale.flat, strict=True):
            if size > _MAX_SIZE or (0 < size < 1 / _MAX_SIZE):
                raise DataError(f"{name} has values of the size {size:.0e}; give it in another unit.")
            if size > _MAX_REACH * scale + abs(centre):
                raise DataError(
                    f"{name} has a value of the size {size:.0e}, more than {_MAX_REACH:.0e} times the spread of the "
                    "others; drop or mend that row."
                )

    def undo(self, values: np.ndarray) -> np.ndarray:
        return values * self.scale + self.centre
