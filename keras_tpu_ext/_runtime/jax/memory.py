"""The memory of JAX's devices, and the arrays in it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import jax
import keras

from keras_tpu_ext._runtime.common.values import ArrayGroup, DeviceUse
from keras_tpu_ext._runtime.compat.keras3_jax import jax_mesh
from keras_tpu_ext._runtime.jax.scope import distribution_of
from keras_tpu_ext._runtime.jax.training_state import all_variables


def memory_reader(model: keras.Model) -> Callable[[], list[DeviceUse]]:
    """Return a function that reads the memory of the devices that train `model`; see `training/protocols.py`."""
    distribution = distribution_of(model) or keras.distribution.distribution()
    devices = jax.devices()[:1] if distribution is None else list(jax_mesh(distribution).local_devices)

    def read() -> list[DeviceUse]:
        told_of = [(device, device.memory_stats()) for device in devices]
        arrays = _bytes_by_device() if any(told is None for _, told in told_of) else Counter()  # a CPU
        found = []
        for device, told in told_of:
            if told is None:
                found.append(DeviceUse(str(device), arrays[device], None, None, "the live arrays of JAX"))
            else:
                memory = told["bytes_in_use"], told.get("peak_bytes_in_use"), told.get("bytes_limit")
                found.append(DeviceUse(str(device), *memory, "all that JAX has allocated on the device"))
        return found

    return read


def _bytes_by_device() -> Counter[jax.Device]:
    found: Counter[jax.Device] = Counter()
    for array in jax.live_arrays():
        size = math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
        for device in array.sharding.addressable_devices:
            found[device] += size
    return found


def live_arrays(model: keras.Model) -> list[ArrayGroup]:
    """Return JAX's live arrays; see `training/protocols.py`."""
    roles = {id(variable.value): role for role, variable in all_variables(model)}
    arrays = [(roles.get(id(one), "other"), one.shape, one.dtype) for one in jax.live_arrays()]
    return [
        ArrayGroup(role, shape, dtype.name, count, count * math.prod(shape) * dtype.itemsize)
        for (role, shape, dtype), count in Counter(arrays).items()
    ]
