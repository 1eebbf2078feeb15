"""What layers and metrics learn from a batch whose rows are not all examples, on TensorFlow replicas.

A row is not an example if it stands in for none (see `tensorflow/empty_replicas.py`) or if it was padded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import Layer, Metric, Model, Nest
from keras_tpu_ext._runtime.tensorflow.batch import (
    BATCH,
    has_local_statistics,
    row_weights,
    select_valid_rows,
    valid_fraction,
    zero_invalid_rows,
)
from keras_tpu_ext._runtime.tensorflow.empty_replicas import no_row_if_empty
from keras_tpu_ext._runtime.tensorflow.graph_axis import of_whole_batch
from keras_tpu_ext._runtime.tensorflow.replicas import num_replicas, sum_over_replicas


def regularizer_of_examples(stock: Any) -> Any:
    """Return a regulariser that corrects for Keras's division by the number of rows, padded ones included."""

    def regularizer(outputs: tf.Tensor) -> Any:
        loss = stock(zero_invalid_rows(outputs))
        return tf.math.divide_no_nan(loss, tf.cast(valid_fraction(), loss.dtype))

    return regularizer


def regularizer_of_whole_batch(stock: Any) -> Any:
    """Return a regulariser for Keras before 3.14, whose loss is a sum over the batch.

    The step treats a scalar as a mean and adds up each replica's share of it; this corrects for that.
    """

    def regularizer(outputs: tf.Tensor) -> Any:
        loss = stock(zero_invalid_rows(outputs))
        if BATCH.is_trial:
            return of_whole_batch(loss)
        if BATCH.role != "exact":
            return loss
        return tf.math.divide_no_nan(loss * tf.cast(BATCH.total, loss.dtype), tf.cast(BATCH.examples, loss.dtype))

    return regularizer


def has_any_example() -> Any:
    """Return whether this replica has an example; `None` if that is certain."""
    return BATCH.has_any if BATCH.valid is None else BATCH.examples > 0


def weights_of(inputs: tf.Tensor) -> Any:
    """Return weights of one or zero, in the dtype of `inputs`, that broadcast to them; ones if all rows count."""
    weights = row_weights(inputs)
    return tf.ones([1] * inputs.shape.rank, inputs.dtype) if weights is None else tf.cast(weights, inputs.dtype)


def moments_of_rows(inputs: tf.Tensor, axes: Any, weights: tf.Tensor) -> tuple[Any, Any, Any]:
    """Return mean, variance and number of the rows with weight one."""
    count = tf.reduce_sum(weights * tf.ones_like(inputs), axes, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(weights * inputs, axes, keepdims=True), count)
    squares = tf.reduce_sum(weights * tf.square(inputs - mean), axes, keepdims=True)
    variance = tf.math.divide_no_nan(squares, count)
    return tf.squeeze(mean, axes), tf.squeeze(variance, axes), tf.squeeze(count, axes)


def synchronizes(model: Model, normalization: Layer) -> bool:
    """Return whether a `BatchNormalization` of `model` uses the statistics of the whole batch.

    It does if it was created so, and in a plain model, which must compute what it computes on one device. To a trial
    it looks like that: what it does in a `TPUModel` is on purpose.
    """
    if BATCH.is_trial:
        return True
    everywhere = model._kte.is_plain and num_replicas() > 1 and has_local_statistics(normalization)
    return bool(normalization.synchronized or everywhere)


def moments_of_all(inputs: tf.Tensor, axes: Any, weights: tf.Tensor) -> tuple[Any, Any, Any]:
    """Return mean, variance and sum of weights over all replicas.

    The variance is the mean of squared deviations, as on one device. `keras.ops.moments(synchronized=True)` takes the
    mean of squares minus the square of the mean, which is only rounding error if the mean is much larger than the
    deviation.
    """
    weights = tf.broadcast_to(weights, tf.shape(inputs))
    sums = [tf.reduce_sum(value, axes, keepdims=True) for value in (weights * inputs, weights)]
    total, count = sum_over_replicas(sums)
    mean = tf.math.divide_no_nan(total, count)  # `tf.distribute` sums gradients too
    squares = tf.reduce_sum(weights * tf.square(inputs - mean), axes, keepdims=True)
    variance = tf.math.divide_no_nan(sum_over_replicas([squares])[0], count)
    return tf.squeeze(mean, axes), tf.squeeze(variance, axes), tf.squeeze(count, axes)


def mask_metrics(metrics: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """Return a context in which `metrics` count neither a row that stands in for no example nor a padded one.

    A value without rows, such as a loss, is the same on every replica and counts on each of them, so that every
    batch has the same weight.
    """
    if BATCH.has_any is None and BATCH.valid is None:
        return contextlib.nullcontext()
    return patched([(metric, "a metric's update_state", _making(metric)) for metric in metrics])


def _making(metric: Metric) -> Any:
    knows_padding = getattr(metric, "knows_padding", False)

    def make(update_state: Any) -> Any:
        def update_with_examples(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _of_examples((args, kwargs), knows_padding)
            return update_state(*args, **kwargs)

        return update_with_examples

    return make


def _of_examples(data: Nest, knows_padding: bool) -> Any:
    """Return `data` with only the rows of examples in its tensors; scalars are kept."""
    leaves = tf.nest.flatten(data)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, tf.Tensor) and leaf.shape.rank != 0]
    with_rows = no_row_if_empty([leaves[i] for i in places], BATCH.has_any)
    for place, leaf in zip(places, with_rows, strict=True):
        leaves[place] = leaf if knows_padding else select_valid_rows(leaf)
    return tf.nest.pack_sequence_as(data, leaves)
