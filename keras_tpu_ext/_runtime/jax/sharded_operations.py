"""What a model that is sharded over a mesh computes in another way than Keras and XLA would by themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras

from keras_tpu_ext._runtime.compat.keras3_jax import Mesh, jax_mesh
from keras_tpu_ext._runtime.jax.activations import activations_over_batch
from keras_tpu_ext._runtime.jax.convolution import convolutions_over_batch


def sharded_operations_of(
    distribution: keras.distribution.Distribution | None,
) -> contextlib.AbstractContextManager[None]:
    """Return `sharded_operations` on the devices of a distribution that shards models; of others, a no-op."""
    if not isinstance(distribution, keras.distribution.ModelParallel):
        return contextlib.nullcontext()
    return sharded_operations(jax_mesh(distribution), distribution.batch_dim_name)


@contextlib.contextmanager
def sharded_operations(mesh: Mesh, batch_axis: str) -> Iterator[None]:
    """Within the block, let what is traced be right, and split along the batch, for a model that is sharded.

    Args:
        mesh: The mesh, also an abstract one.
        batch_axis: Its axis that batches are sharded along.
    """
    with convolutions_over_batch(mesh, batch_axis), activations_over_batch(mesh, batch_axis):
        yield
