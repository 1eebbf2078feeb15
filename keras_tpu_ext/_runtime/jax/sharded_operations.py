"""What a model that is sharded over a mesh computes differently from Keras and XLA by default.

Convolutions: if the operands of one are partially replicated, XLA sums its gradient over the replicas too
(jaxlib 0.10.2): it is too large by a factor of 2 or 4, or the process ends. So each device convolves its part of the
batch, and XLA's partitioner sees none of it. See tests/test_jax_sharding.py.

Outputs of layers: XLA may gather a batch and split a sum instead of gathering the weights of a layer. So outputs are
constrained to be split along the batch.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator

import jax
import keras
from jax.sharding import NamedSharding, PartitionSpec

from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import Layer, Nest
from keras_tpu_ext._runtime.compat.keras3 import mask_of, with_mask
from keras_tpu_ext._runtime.compat.keras3_jax import Mesh, backend_nn, jax_mesh, shard_map

_CONVOLUTIONS = ("conv", "depthwise_conv", "conv_transpose")
_Convolve = Callable[..., jax.Array]


class _Context(threading.local):
    """The mesh of the sharded model that this thread traces; `None` outside one, and within a convolution."""

    is_active = False
    mesh: Mesh | None = None
    batch_axis = ""


_CONTEXT = _Context()


def sharded_operations_of(
    distribution: keras.distribution.Distribution | None, *, replaces: bool = False
) -> contextlib.AbstractContextManager[None]:
    """Return `sharded_operations` on the devices of a distribution."""
    if distribution is None:
        return sharded_operations(None, "", replaces=True) if replaces else contextlib.nullcontext()
    is_sharded = isinstance(distribution, keras.distribution.ModelParallel)
    mesh = jax_mesh(distribution) if is_sharded else None
    return sharded_operations(mesh, distribution.batch_dim_name, replaces=replaces)


@contextlib.contextmanager
def sharded_operations(mesh: Mesh | None, batch_axis: str, *, replaces: bool = False) -> Iterator[None]:
    """Within the block, trace a sharded model with correct convolutions and outputs split along the batch.

    Args:
        mesh: The mesh, which may be abstract; `None` for a model that is not sharded, which is traced as it is.
        batch_axis: Its axis along which batches are sharded.
        replaces: Whether the block counts also within another one; else the outermost does.
    """
    if _CONTEXT.is_active and not replaces:
        yield
        return
    if mesh is None:
        with _tracing(None, ""):
            yield
        return
    convolutions = [(backend_nn, name, _over_batch) for name in _CONVOLUTIONS]
    with patched([*convolutions, (keras.layers.Layer, "__call__", _with_split_outputs)]), _tracing(mesh, batch_axis):
        yield


@contextlib.contextmanager
def _tracing(mesh: Mesh | None, batch_axis: str) -> Iterator[None]:
    before = _CONTEXT.is_active, _CONTEXT.mesh, _CONTEXT.batch_axis
    _CONTEXT.is_active, _CONTEXT.mesh, _CONTEXT.batch_axis = True, mesh, batch_axis
    try:
        yield
    finally:
        _CONTEXT.is_active, _CONTEXT.mesh, _CONTEXT.batch_axis = before


def _over_batch(original: _Convolve) -> _Convolve:
    """Let each device convolve its part of the batch with the whole kernel."""

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


def _with_split_outputs(original: Callable[..., Nest]) -> Callable[..., Nest]:
    """Constrain the outputs of a layer to be split along the batch, if they have the rows of its first input."""

    @functools.wraps(original)
    def call(layer: Layer, *args: Nest, **kwargs: Nest) -> Nest:
        outputs = original(layer, *args, **kwargs)
        mesh, axis = _CONTEXT.mesh, _CONTEXT.batch_axis
        if mesh is None or mesh.shape[axis] == 1:
            return outputs
        inputs = (leaf for leaf in jax.tree.leaves((args, kwargs)) if _is_traced(leaf))
        rows = next((leaf.shape[0] for leaf in inputs), 0)
        if not rows or rows % mesh.shape[axis]:
            return outputs

        def split(leaf: Nest) -> Nest:
            if not _is_traced(leaf) or leaf.shape[0] != rows:
                return leaf
            spec = PartitionSpec(axis, *[PartitionSpec.UNCONSTRAINED] * (leaf.ndim - 1))
            return with_mask(jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, spec)), mask_of(leaf))

        return jax.tree.map(split, outputs)

    return call


def _is_traced(leaf: Nest) -> bool:
    return isinstance(leaf, jax.core.Tracer) and leaf.ndim > 0
