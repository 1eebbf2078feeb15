"""The `add_loss` terms of a forward pass on Keras 2, where every replica, a thread, has its own.

Private names of Keras that this module leans on (tests/_runtime/test_keras2_private_names.py watches them):
of layers `_eager_losses` and `_callable_losses`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.tensorflow.batch import BATCH, valid_fraction


@contextlib.contextmanager
def record_layer_losses(layers: Sequence[Any]) -> Iterator[None]:
    """Within the block runs a forward pass; after it `BATCH.layer_losses` has its terms, with the layer of each."""
    yield
    BATCH.layer_losses = [(layer, loss) for layer in layers for loss in layer._eager_losses]
    unreduced = [loss for _, loss in BATCH.layer_losses if loss.shape.rank]
    BATCH.layer_loss_elements = _elements_of_examples(unreduced[0]) if unreduced else None


def _elements_of_examples(unreduced: Any) -> Any:
    elements = tf.cast(tf.size(unreduced), tf.float32) * valid_fraction()
    return elements if BATCH.has_any is None else tf.where(BATCH.has_any, elements, 0.0)


def set_layer_losses(layers: Sequence[Any], layer_losses: Sequence[tuple[Any, Any]]) -> None:
    """Let layers have these terms, where `losses` is read next."""
    for layer in layers:
        layer._eager_losses = [loss for owner, loss in layer_losses if owner is layer]


def layer_losses(layers: Sequence[Any]) -> list[Any]:
    """Return the terms that layers have now."""
    return [loss for layer in layers for loss in layer._eager_losses]


def weight_losses(layers: Sequence[Any]) -> list[Any]:
    """Return the losses that are functions of weights: regularisers, and what `add_loss` got as a function."""
    losses = [loss() for layer in layers for loss in layer._callable_losses]
    return [loss for loss in losses if loss is not None]
