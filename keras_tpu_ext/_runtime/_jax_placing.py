"""Arrays of the host, put on the devices of a distribution; each process puts its own part."""

from __future__ import annotations

from typing import Any

import jax
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
        return jax.tree.map(jax.device_put, data)
    mesh = distribution.device_mesh.backend_mesh
    spec = PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, distribution.batch_dim_name)
    sharding = NamedSharding(mesh, spec)
    return jax.tree.map(lambda array: _put(array, sharding), data)


def replicated(distribution: Any) -> Any:
    """Return the sharding of what every device has alike; `None` without a distribution."""
    return None if distribution is None else NamedSharding(distribution.device_mesh.backend_mesh, PartitionSpec())


def _put(array: Any, sharding: Any) -> Any:
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    array = np.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])
