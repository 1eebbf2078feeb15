"""Layers that learn something from a batch as a whole: rows that are no examples do not count.

A row is no example if it stands in for none (see `tensorflow/empty_replicas.py`) or if it was padded. Batch
normalisation has its statistics from the examples alone, and activity regularisers have their sums.

Private names of Keras that this module leans on (tests/_runtime/test_tf_private_names.py watches them):
`BatchNormalization._reduction_axes`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.keras3.batch_statistics import moments_patches, regularizer_patches
from keras_tpu_ext._runtime.tensorflow.batch import BATCH, valid_rows_of, zero_invalid_rows
from keras_tpu_ext._runtime.tensorflow.batch_statistics import (
    any_example,
    moments_of_all,
    moments_of_rows,
    regulariser_of_examples,
    weights_of,
)


@contextlib.contextmanager
def exclude_padding(layers: Sequence[Any]) -> Iterator[None]:
    """Within the block `layers` learn from the examples of the batch at hand, see `batch_context`."""
    places = moments_patches(layers, _moments)
    if BATCH.real is not None:
        places += regularizer_patches(layers, regulariser_of_examples)
    with patched(places):
        yield


def _moments(layer: Any, stock: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Return mean and variance; on a replica without examples those that change nothing."""
    real = valid_rows_of(inputs)
    if layer.synchronized and (mask is not None or real is not None or BATCH.has_any is not None):
        weights = weights_of(inputs)  # Keras looks at one replica where there is a mask
        weights = weights if mask is None else weights * tf.cast(mask, inputs.dtype)[..., tf.newaxis]
        return moments_of_all(inputs, layer._reduction_axes, weights)
    if real is None:
        mean, variance = stock(inputs, mask)
    elif mask is None:
        mean, variance = moments_of_rows(inputs, layer._reduction_axes, weights_of(inputs))
    else:
        mean, variance = stock(inputs, zero_invalid_rows(mask))
    there = any_example()
    if there is None:
        return mean, variance
    kept = tf.cast(layer.moving_mean.value, mean.dtype), tf.cast(layer.moving_variance.value, variance.dtype)
    return (
        tf.where(there, mean, tf.reshape(kept[0], tf.shape(mean))),
        tf.where(there, variance, tf.reshape(kept[1], tf.shape(variance))),
    )
