"""Convolutions of sharded models: each device convolves its part of the batch, and XLA's partitioner sees none of it.

Where the operands of a convolution are on several devices in part only, XLA sums its gradient over copies too (jaxlib
0.10.2): it is too large by a factor of 2 or 4, or the process ends. See tests/test_jax_sharding.py.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator

import jax
import keras
from jax.sharding import PartitionSpec

from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.compat.keras3_jax import Mesh, backend_nn, shard_map

_NAMES = ("conv", "depthwise_conv", "conv_transpose")
_Convolve = Callable[..., jax.Array]


class _Context(threading.local):
    """The mesh of the sharded model that this thread traces; `None` outside and within a convolution."""

    mesh: Mesh | None = None
    batch_axis = ""


_CONTEXT = _Context()


@contextlib.contextmanager
def convolutions_over_batch(mesh: Mesh, batch_axis: str) -> Iterator[None]:
    """Within the block, let each device of a mesh convolve its part of the batch, for a model that is sharded.

    Args:
        mesh: The mesh, also an abstract one.
        batch_axis: Its axis that batches are sharded along.
    """
    with patched([(backend_nn, name, _over_batch) for name in _NAMES]), _tracing(mesh, batch_axis):
        yield


@contextlib.contextmanager
def _tracing(mesh: Mesh | None, batch_axis: str) -> Iterator[None]:
    before = _CONTEXT.mesh, _CONTEXT.batch_axis
    _CONTEXT.mesh, _CONTEXT.batch_axis = mesh, batch_axis
    try:
        yield
    finally:
        _CONTEXT.mesh, _CONTEXT.batch_axis = before


def _over_batch(original: _Convolve) -> _Convolve:
    @functools.wraps(original)
    def convolve(inputs: jax.Array, kernel: jax.Array, *args: object, **kwargs: object) -> jax.Array:
        mesh, axis = _CONTEXT.mesh, _CONTEXT.batch_axis
        if mesh is None:
            return original(inputs, kernel, *args, **kwargs)
        divided = not inputs.shape[0] % mesh.shape[axis]
        split = PartitionSpec(axis) if divided else PartitionSpec()

        def of_one_device(inputs: jax.Array, kernel: jax.Array) -> jax.Array:
            with _tracing(None, ""):
                return original(inputs, kernel, *args, **kwargs)

        each = shard_map(of_one_device, mesh, (split, PartitionSpec()), split)
        return each(keras.ops.convert_to_tensor(inputs), keras.ops.convert_to_tensor(kernel))

    return convolve
