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
from keras_tpu_ext._runtime.compat.keras3_jax import backend_nn, jax_mesh, shard_map

_NAMES = ("conv", "depthwise_conv", "conv_transpose")
_Convolve = Callable[..., jax.Array]


class _Context(threading.local):
    """The distribution whose model this thread traces; `None` outside and within a convolution."""

    distribution: keras.distribution.Distribution | None = None


_CONTEXT = _Context()


@contextlib.contextmanager
def convolutions_over_batch(distribution: keras.distribution.Distribution | None) -> Iterator[None]:
    """Within the block, let each device convolve its part of the batch, for a model that is sharded."""
    if not isinstance(distribution, keras.distribution.ModelParallel):
        yield
        return
    with patched([(backend_nn, name, _over_batch) for name in _NAMES]), _tracing(distribution):
        yield


@contextlib.contextmanager
def _tracing(distribution: keras.distribution.Distribution | None) -> Iterator[None]:
    before, _CONTEXT.distribution = _CONTEXT.distribution, distribution
    try:
        yield
    finally:
        _CONTEXT.distribution = before


def _over_batch(original: _Convolve) -> _Convolve:
    @functools.wraps(original)
    def convolve(inputs: jax.Array, kernel: jax.Array, *args: object, **kwargs: object) -> jax.Array:
        distribution = _CONTEXT.distribution
        if distribution is None:
            return original(inputs, kernel, *args, **kwargs)
        mesh, axis = jax_mesh(distribution), distribution.batch_dim_name
        divided = not inputs.shape[0] % mesh.shape[axis]
        split = PartitionSpec(axis) if divided else PartitionSpec()

        def of_one_device(inputs: jax.Array, kernel: jax.Array) -> jax.Array:
            with _tracing(None):
                return original(inputs, kernel, *args, **kwargs)

        each = shard_map(of_one_device, mesh, (split, PartitionSpec()), split)
        return each(keras.ops.convert_to_tensor(inputs), keras.ops.convert_to_tensor(kernel))

    return convolve
