"""Arrays of the host, put on the devices of a distribution; each process puts its own part."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec


def placed(data: Any, distribution: Any, *, axis: int | None) -> Any:
    """Return `data` with its arrays on the devices of `distribution`, on the default device where that is `None`.

    Args:
        data: Structure of arrays that every process has alike; `None` in it stays.
        distribution: Keras's `DataParallel`, or `None`.
        axis: The dimension that is split over the devices, which must divide it; `None` for copies on each.
    """
    if distribution is None:
        return jax.device_put(data)
    mesh = distribution.device_mesh.backend_mesh
    spec = PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, distribution.batch_dim_name)
    sharding = NamedSharding(mesh, spec)
    if sharding.is_fully_addressable:
        return jax.device_put(data, sharding)
    return jax.tree.map(lambda array: _put_own_part(np.asarray(array), sharding), data)


def replicated(distribution: Any) -> Any:
    """Return the sharding of what every device has alike; `None` without a distribution."""
    return None if distribution is None else NamedSharding(distribution.device_mesh.backend_mesh, PartitionSpec())


def copy_aliased_buffers(state: Any) -> Any:
    """Return a structure of arrays in which none is there twice: copies take the place of the second and so on."""
    seen: set[int] = set()

    def own(array: Any) -> Any:
        buffer = _buffer(array)
        if array.size and buffer in seen:
            return array.copy()
        seen.add(buffer)
        return array

    return jax.tree.map(own, state)


def _buffer(array: Any) -> int:
    """Return what tells the memory of an array from that of others."""
    try:
        return int(array.addressable_data(0).unsafe_buffer_pointer())
    except jax.errors.JaxRuntimeError:  # not every device tells its addresses
        return id(array)


def _put_own_part(array: np.ndarray, sharding: Any) -> Any:
    return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])


def data_parallel(devices: Any) -> keras.distribution.DataParallel:
    """Return Keras's distribution that splits batches over `devices`."""
    # Each process is given the whole batch and takes its part, so nothing is to be sharded once more.
    return keras.distribution.DataParallel(
        devices=[f"{device.platform}:{device.id}" for device in devices], auto_shard_dataset=False
    )
