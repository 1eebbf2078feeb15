"""Activations of sharded models: split along the batch, whatever the layouts of the weights suggest to XLA.

Left alone, XLA's partitioner may gather a batch and split a sum instead of gathering the weights of a layer.
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
from keras_tpu_ext._runtime.compat.keras3_jax import Mesh


class _Context(threading.local):
    """The mesh of the sharded model that this thread traces, if it does."""

    mesh: Mesh | None = None
    batch_axis = ""


_CONTEXT = _Context()


@contextlib.contextmanager
def activations_over_batch(mesh: Mesh, batch_axis: str) -> Iterator[None]:
    """Within the block, let the outputs of layers be sharded along the batch where they are traced.

    Args:
        mesh: The mesh, also an abstract one.
        batch_axis: Its axis that batches are sharded along.
    """
    before = _CONTEXT.mesh, _CONTEXT.batch_axis
    with patched([(keras.layers.Layer, "__call__", _with_sharded_outputs)]):
        _CONTEXT.mesh, _CONTEXT.batch_axis = mesh, batch_axis
        try:
            yield
        finally:
            _CONTEXT.mesh, _CONTEXT.batch_axis = before


def _with_sharded_outputs(original: Callable[..., Nest]) -> Callable[..., Nest]:
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

        def sharded(leaf: Nest) -> Nest:
            if not _is_traced(leaf) or leaf.shape[0] != rows:
                return leaf
            spec = PartitionSpec(axis, *[PartitionSpec.UNCONSTRAINED] * (leaf.ndim - 1))
            return with_mask(jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, spec)), mask_of(leaf))

        return jax.tree.map(sharded, outputs)

    return call


def _is_traced(leaf: Nest) -> bool:
    return isinstance(leaf, jax.core.Tracer) and leaf.ndim > 0
