"""Keras's operations, exact on the devices for which they are traced: attention, and those of a sharded model.

Convolutions: if the operands of one are partially replicated, XLA sums its gradient over the replicas too
(jaxlib 0.10.2): it is too large by a factor of 2 or 4, or the process ends. So each device convolves its part of the
batch, and XLA's partitioner sees none of it. See tests/test_jax_sharding.py.

Outputs of layers: XLA may gather a batch and split a sum instead of gathering the weights of a layer. So outputs are
constrained to be split along the batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator

import jax
import keras
from jax.sharding import NamedSharding, PartitionSpec

from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import Layer, Nest
from keras_tpu_ext._runtime.compat.keras3 import mask_of, with_mask
from keras_tpu_ext._runtime.compat.keras3_jax import Mesh, backend_nn, shard_map
from keras_tpu_ext._runtime.jax.attention import attention_patches
from keras_tpu_ext._runtime.jax.interleave import stack_patches
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices, traced_devices, tracing_devices

_CONVOLUTIONS = ("conv", "depthwise_conv", "conv_transpose")
_Convolve = Callable[..., jax.Array]


@contextlib.contextmanager
def exact_operations(devices: TracedDevices) -> Iterator[None]:
    """Within the block, let Keras's operations be exact on `devices`."""
    patches = [*(attention_patches() if devices.exact_attention else []), *stack_patches()]
    if devices.is_sharded:
        patches += [(backend_nn, f"keras.src.backend.jax.nn.{name}", _over_batch) for name in _CONVOLUTIONS]
        patches.append((keras.layers.Layer, "keras.layers.Layer.__call__", _with_split_outputs))
    with patched(patches), tracing_devices(devices):
        yield


def _sharded_devices() -> tuple[TracedDevices, Mesh, str] | None:
    """Return the devices that this thread traces a sharded model for, their mesh and its axis for batches."""
    devices = traced_devices()
    if devices is None or devices.mesh is None or not devices.is_sharded:
        return None
    return devices, devices.mesh, devices.batch_axis


def _over_batch(original: _Convolve) -> _Convolve:
    """Let each device convolve its part of the batch with the whole kernel."""

    @functools.wraps(original)
    def convolve(inputs: jax.Array, kernel: jax.Array, *args: object, **kwargs: object) -> jax.Array:
        if (sharded := _sharded_devices()) is None:
            return original(inputs, kernel, *args, **kwargs)
        devices, mesh, axis = sharded
        divided = not inputs.shape[0] % mesh.shape[axis]
        split = PartitionSpec(axis) if divided else PartitionSpec()

        def of_one_device(inputs: jax.Array, kernel: jax.Array) -> jax.Array:
            with tracing_devices(dataclasses.replace(devices, is_sharded=False)):
                return original(inputs, kernel, *args, **kwargs)

        each = shard_map(of_one_device, mesh, (split, PartitionSpec()), split)
        return each(keras.ops.convert_to_tensor(inputs), keras.ops.convert_to_tensor(kernel))

    return convolve


def _with_split_outputs(original: Callable[..., Nest]) -> Callable[..., Nest]:
    """Constrain the outputs of a layer to be split along the batch, if they have the rows of its first input."""

    @functools.wraps(original)
    def call(layer: Layer, *args: Nest, **kwargs: Nest) -> Nest:
        outputs = original(layer, *args, **kwargs)
        if (sharded := _sharded_devices()) is None:
            return outputs
        _, mesh, axis = sharded
        if mesh.shape[axis] == 1:
            return outputs
        inputs = (leaf for leaf in jax.tree.leaves((args, kwargs)) if _is_traced(leaf))
        rows = next((leaf.shape[0] for leaf in inputs), 0)
        if not rows or rows % mesh.shape[axis]:
            return outputs

        def split(leaf: jax.Array) -> Nest:
            if not _is_traced(leaf) or leaf.shape[0] != rows:
                return leaf
            spec = PartitionSpec(axis, *[PartitionSpec.UNCONSTRAINED] * (leaf.ndim - 1))
            return with_mask(jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, spec)), mask_of(leaf))

        return jax.tree.map(split, outputs)

    return call


def _is_traced(leaf: Nest) -> bool:
    return isinstance(leaf, jax.core.Tracer) and leaf.ndim > 0
