"""Keras's operations, exact on the devices of a distribution."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras

from keras_tpu_ext._runtime.jax.attention import exact_attention_of
from keras_tpu_ext._runtime.jax.sharded_operations import sharded_operations_of


@contextlib.contextmanager
def exact_operations(
    distribution: keras.distribution.Distribution | None, *, replaces: bool = False
) -> Iterator[None]:
    """Within the block, let Keras's operations be exact on the devices of a distribution.

    A model that is called within another one is a part of it, on the other's devices: of nested blocks the outermost
    counts. The loop of a model, whose steps are its own, replaces what counts around it.

    Args:
        distribution: The distribution; `None` for one device.
        replaces: Whether the block counts also within another one.
    """
    with (
        exact_attention_of(distribution, replaces=replaces),
        sharded_operations_of(distribution, replaces=replaces),
    ):
        yield
