"""Put host arrays on the devices of a distribution; each process puts its own shards."""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Sequence

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


def unshare(variables: Sequence[keras.Variable], running: Collection[int] = ()) -> None:
    """Give each variable an array of its own if anything else holds it too: a step donates it, which deletes it.

    After `fit` a variable and its moving average share one array, and after `target.assign(online)` two models do. A
    step of one of them would take it from the other.

    Args:
        variables: The variables of a step.
        running: Ids of the arrays that Keras's running loop holds, too, and drops before the step.
    """
    alone = _references_of_one_variable()
    for variable in variables:
        array = variable.value
        if sys.getrefcount(array) > alone + (id(array) in running):
            variable.assign(array.copy())


@functools.cache
def _references_of_one_variable() -> int:
    array = keras.Variable("zeros", shape=(), trainable=False).value
    return sys.getrefcount(array) + 1  # that of the variable, which is gone


def _put_own_shards(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])


def data_parallel(devices: Sequence[jax.Device]) -> keras.distribution.DataParallel:
    """Return Keras's distribution that splits batches over `devices`."""
    # Each process gets the whole batch and takes its part of it, so the dataset must not be sharded again.
    return keras.distribution.DataParallel(
        devices=[f"{device.platform}:{device.id}" for device in devices], auto_shard_dataset=False
    )
