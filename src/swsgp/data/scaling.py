"""Columns brought to mean 0 and spread 1, and back."""

from dataclasses import dataclass

import numpy as np

from swsgp.arrays import as_inputs, as_target

# Values beyond the 1% and 99% quantiles by more than their distance do not count for mean and spread.
_QUANTILES = (0.01, 0.99)


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
        low, high = np.quantile(values, _QUANTILES, axis=0)
        # Where nearly all values are equal, the few others are what the column has to say.
        reach = np.where(high > low, high - low, np.inf)
        plausible = np.clip(values, low - reach, high + reach)
        scale = plausible.std(axis=0)
        centre = np.asarray(plausible.mean(axis=0))
        # Rounding leaves a constant column of large values with a tiny spread.
        scale = np.where(scale > 1e-12 * np.abs(centre), scale, 1.0)
        return cls(centre, scale)

    def except_for(self, columns: np.ndarray) -> "Scaling":
        """The same, but with these columns left as they are."""
        return Scaling(np.where(columns, 0.0, self.centre), np.where(columns, 1.0, self.scale))

    def apply(self, values: np.ndarray) -> np.ndarray:
        return (values - self.centre) / self.scale

    def undo(self, values: np.ndarray) -> np.ndarray:
        return values * self.scale + self.centre
