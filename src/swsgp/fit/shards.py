"""How rows and batches are divided among devices: those of this process and, after `processes.join`, of all."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from swsgp import processes
from swsgp.arrays import power_of_two_below
from swsgp.data.batches import LEAST_ROWS
from swsgp.errors import SettingError

AXIS = "rows"


class Shards:
    """Every device has the rows of some neighbouring lanes of a `RowStream`, in order, and the whole model.

    `mesh` is None if there is one device, which then has everything as it is: also where batches stay whole.
    """

    def __init__(self, n_lanes: int, whole_batches: bool = False):
        n = processes.count()
        if whole_batches and n > 1:
            raise SettingError("active='union' has one active set for each mini-batch: train it in one process.")
        if n_lanes % n:
            raise SettingError(
                f"mini-batches cannot be divided evenly among {n} processes: use 2, 4, 8, … of them, a batch_size that "
                f"is a multiple of their number, and {LEAST_ROWS} rows for each at least."
            )
        groups = [_devices_of(number) for number in range(n)] if n > 1 else [jax.local_devices()]
        n_each = 1 if whole_batches else min(power_of_two_below(min(map(len, groups))), n_lanes // n)
        self.n_lanes, self.n_devices = n_lanes, n * n_each
        # The devices of this process.
        self.own = range(processes.number() * n_each, (processes.number() + 1) * n_each)
        devices = [device for group in groups for device in group[:n_each]]
        self.mesh = Mesh(np.array(devices), (AXIS,)) if len(devices) > 1 else None

    @property
    def lanes(self) -> int:
        """Of each device."""
        return self.n_lanes // self.n_devices

    @property
    def own_lanes(self) -> range:
        """Of this process."""
        return range(self.own.start * self.lanes, self.own.stop * self.lanes)

    def of_batches(self, batches: np.ndarray) -> np.ndarray:
        """The columns of batches that the devices of this process have."""
        size = batches.shape[1] // self.n_devices
        return batches[:, self.own.start * size : self.own.stop * size]

    def split(self, parts: np.ndarray, axis: int = 0) -> Any:
        """One array of all devices' parts, which lie one after the other along an axis; this process has its own."""
        if self.mesh is None:
            return jax.device_put(parts)
        spec = PartitionSpec(*(None,) * axis, AXIS)
        return jax.make_array_from_process_local_data(NamedSharding(self.mesh, spec), parts)

    def everywhere(self, tree: Any) -> Any:
        """Arrays that every device has, from those of this process."""
        if self.mesh is None:
            return jax.device_put(tree)
        sharding = NamedSharding(self.mesh, PartitionSpec())
        return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(sharding, leaf), tree)

    def here(self, tree: Any) -> Any:
        """Arrays that every device has, as those of this process."""
        return tree if self.mesh is None else jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


def _devices_of(process: int) -> list[Any]:
    return [device for device in jax.devices() if device.process_index == process]
