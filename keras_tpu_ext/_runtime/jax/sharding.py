"""Put host arrays on the devices of a distribution; each process puts its own shards."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.compat.keras3_jax import jax_mesh


def shard_data(data: Nest, distribution: keras.distribution.DataParallel | None, *, axis: int | None) -> Nest:
    """Return `data` with its arrays on the devices of `distribution`, or on the default device without one.

    Args:
        data: Structure of arrays, the same in every process; `None` in it is kept.
        distribution: Keras's distribution, or `None`.
        axis: The dimension to shard, whose size must split evenly over the devices; `None` to replicate.
    """
    if distribution is None:
        return jax.device_put(data)
    mesh = jax_mesh(distribution)
    spec = PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, distribution.batch_dim_name)
    sharding = NamedSharding(mesh, spec)
    if sharding.is_fully_addressable:
        return jax.device_put(data, sharding)
    return jax.tree.map(lambda array: _put_own_shards(np.asarray(array), sharding), data)


def replicated(distribution: keras.distribution.DataParallel | None) -> NamedSharding | None:
    """Return the sharding of a replicated array; `None` without a distribution."""
    return None if distribution is None else NamedSharding(jax_mesh(distribution), PartitionSpec())


def copy_aliased_buffers(state: Nest) -> Nest:
    """Copy each array whose buffer is already in `state`, so that all buffers can be donated."""
    seen: set[int] = set()

    def copy_if_seen(array: jax.Array) -> jax.Array:
        buffer = _buffer(array)
        if array.size and buffer in seen:
            return array.copy()
        seen.add(buffer)
        return array

    return jax.tree.map(copy_if_seen, state)


def _buffer(array: jax.Array) -> int:
    """Return an identifier of the buffer of `array`."""
    try:
        return int(array.addressable_data(0).unsafe_buffer_pointer())
    except jax.errors.JaxRuntimeError:  # not every device reports its addresses
        return id(array)


def _put_own_shards(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])


def data_parallel(devices: Sequence[jax.Device]) -> keras.distribution.DataParallel:
    """Return Keras's distribution that splits batches over `devices`."""
    # Each process gets the whole batch and takes its part of it, so the dataset must not be sharded again.
    return keras.distribution.DataParallel(
        devices=[f"{device.platform}:{device.id}" for device in devices], auto_shard_dataset=False
    )
