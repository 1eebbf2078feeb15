"""Layers that learn something from a batch as a whole: rows that are no examples do not count.

A row is no example if it stands in for none (see `_tf_empty.py`) or if it was padded. Batch normalisation has its
statistics from the examples alone, and activity regularisers have their sums.

Private names of Keras that this module leans on (tests/_runtime/test_tf_private_names.py watches them):
`BatchNormalization._reduction_axes`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime._hooks import replaced
from keras_tpu_ext._runtime._keras3_alone import moments_of_examples, regularisers_of_examples
from keras_tpu_ext._runtime._tf_batch import BATCH, only_real, part_that_counts, real_of
from keras_tpu_ext._runtime._tf_empty import one_row_if_empty
from keras_tpu_ext._runtime._tf_replicas import sum_over_replicas


def sees_its_replica_only(normalisation: Any) -> bool:
    """Return whether a `BatchNormalization` takes mean and variance of a part of the batch."""
    return not getattr(normalisation, "synchronized", False)


@contextlib.contextmanager
def examples_alone(layers: Sequence[Any]) -> Iterator[None]:
    """Within the block `layers` learn from the examples of the batch at hand, see `known_batch`."""
    places: list[Any] = []
    if BATCH.has_any is not None or BATCH.real is not None:
        places += moments_of_examples(layers, _moments)
    if BATCH.real is not None:
        places += regularisers_of_examples(layers, _regulariser_of_examples)
    with replaced(places):
        yield


def _regulariser_of_examples(stock: Any) -> Any:
    """Return a regulariser that makes up for the padded rows by which Keras divides."""

    def regularizer(outputs: Any) -> Any:
        loss = stock(only_real(outputs))
        return tf.math.divide_no_nan(loss, tf.cast(part_that_counts(), loss.dtype))

    return regularizer


def _moments(layer: Any, stock: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Return mean and variance; on a replica without examples those that change nothing."""
    real = real_of(inputs)
    if mask is None and layer.synchronized:
        return _moments_of_all(inputs, layer._reduction_axes, _weights(inputs, real))
    if real is None:
        mean, variance = stock(inputs, mask)
    elif mask is None:
        mean, variance = _moments_of_rows(inputs, layer._reduction_axes, _weights(inputs, real))
    else:
        mean, variance = stock(inputs, only_real(mask))
    there = _any_example()
    if there is None:
        return mean, variance
    kept = tf.cast(layer.moving_mean.value, mean.dtype), tf.cast(layer.moving_variance.value, variance.dtype)
    return (
        tf.where(there, mean, tf.reshape(kept[0], tf.shape(mean))),
        tf.where(there, variance, tf.reshape(kept[1], tf.shape(variance))),
    )


def _any_example() -> Any:
    """Return whether this replica has an example; `None` where that is certain."""
    return BATCH.has_any if BATCH.real is None else BATCH.examples > 0


def _weights(inputs: Any, real: Any) -> Any:
    """Return weights of one or zero that broadcast to `inputs`; a row that stands in for none has zero."""
    ones = [1] * (inputs.shape.rank - 1)
    weights = tf.ones([1, *ones], inputs.dtype)
    if real is not None:
        weights = one_row_if_empty(tf.reshape(tf.cast(real, inputs.dtype), [-1, *ones]), BATCH.has_any)
    return weights if BATCH.has_any is None else weights * tf.cast(BATCH.has_any, inputs.dtype)


def _moments_of_rows(inputs: Any, axes: Any, weights: Any) -> tuple[Any, Any]:
    count = tf.reduce_sum(weights * tf.ones_like(inputs), axes, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(weights * inputs, axes, keepdims=True), count)
    squares = tf.reduce_sum(weights * tf.square(inputs - mean), axes, keepdims=True)
    variance = tf.math.divide_no_nan(squares, count)
    return tf.squeeze(mean, axes), tf.squeeze(variance, axes)


def _moments_of_all(inputs: Any, axes: Any, weights: Any) -> tuple[Any, Any]:
    """Return mean and variance over all replicas, as `keras.ops.moments(synchronized=True)` with fewer sums."""
    weights = tf.broadcast_to(weights, tf.shape(inputs))
    values = [weights * inputs, weights * tf.square(inputs), weights]
    total, squares, count = sum_over_replicas([tf.reduce_sum(value, axes) for value in values])
    mean = tf.math.divide_no_nan(total, count)  # `tf.distribute` sums gradients too
    return mean, tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
