"""What layers and metrics learn from a batch whose rows are not all examples, on TensorFlow replicas.

A row is not an example if it stands in for none (see `tensorflow/empty_replicas.py`) or if it was padded.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import Layer, Metric, Model
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

_Regularizer: TypeAlias = Callable[[tf.Tensor], tf.Tensor]


def regularizer_of_examples(stock: _Regularizer) -> _Regularizer:
    """Return a regulariser that corrects for Keras's division by the number of rows, padded ones included."""

    def regularizer(outputs: tf.Tensor) -> tf.Tensor:
        loss = stock(zero_invalid_rows(outputs))
        return tf.math.divide_no_nan(loss, tf.cast(valid_fraction(), loss.dtype))

    return regularizer


def regularizer_of_whole_batch(stock: _Regularizer) -> _Regularizer:
    """Return a regulariser for Keras before 3.14, whose loss is a sum over the batch.

    The step treats a scalar as a mean and adds up each replica's part of it; this corrects for that.
    """

    def regularizer(outputs: tf.Tensor) -> tf.Tensor:
        loss = stock(zero_invalid_rows(outputs))
        if BATCH.is_trial and BATCH.role is None:
            return loss / tf.cast(tf.shape(outputs)[0], loss.dtype)  # a mean, if it is a sum
        if BATCH.is_trial:
            return of_whole_batch(loss)
        if BATCH.role != "exact":
            return loss
        return tf.math.divide_no_nan(loss * tf.cast(BATCH.total, loss.dtype), tf.cast(BATCH.examples, loss.dtype))

    return regularizer


def has_any_example() -> tf.Tensor | None:
    """Return whether this replica has an example; `None` if that is certain."""
    return BATCH.has_any if BATCH.valid is None else BATCH.examples > 0


def weights_of(inputs: tf.Tensor) -> tf.Tensor:
    """Return weights of one or zero, in the dtype of `inputs`, that broadcast to them; ones if all rows count."""
    weights = row_weights(inputs)
    return tf.ones([1] * inputs.shape.rank, inputs.dtype) if weights is None else tf.cast(weights, inputs.dtype)


def synchronizes(model: Model, normalization: Layer) -> bool:
    """Return whether a `BatchNormalization` uses the statistics of the whole batch: if made so, or in a plain model.

    To a trial it looks like that: what it does in a `TPUModel` is on purpose.
    """
    if BATCH.is_trial:
        return True
    everywhere = model._kte.is_plain and num_replicas() > 1 and has_local_statistics(normalization)
    return bool(normalization.synchronized or everywhere)


def weighted_moments(
    inputs: tf.Tensor, axes: Sequence[int], weights: tf.Tensor, *, of_all_replicas: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return mean, variance and sum of weights, of this replica or of all.

    The mean of squares minus the square of the mean, as `keras.ops.moments(synchronized=True)` has it, would be only
    rounding error if the mean is much larger than the deviation.
    """
    summed = sum_over_replicas if of_all_replicas else list
    weights = tf.broadcast_to(weights, tf.shape(inputs))
    sums = [tf.reduce_sum(value, axes, keepdims=True) for value in (weights * inputs, weights)]
    total, count = summed(sums)
    mean = tf.math.divide_no_nan(total, count)  # `tf.distribute` sums gradients too
    squares = tf.reduce_sum(weights * tf.square(inputs - mean), axes, keepdims=True)
    variance = tf.math.divide_no_nan(summed([squares])[0], count)
    return tf.squeeze(mean, axes), tf.squeeze(variance, axes), tf.squeeze(count, axes)


def mask_metrics(metrics: Sequence[Metric]) -> contextlib.AbstractContextManager[None]:
    """Return a context in which `metrics` count neither a row that stands in for no example nor a padded one.

    A value without rows, such as a loss, is the same on every replica and counts on each of them, so that every
    batch has the same weight.
    """
    if BATCH.has_any is None and BATCH.valid is None:
        return contextlib.nullcontext()
    return patched([(m, "a metric's update_state", functools.partial(_with_examples, m)) for m in metrics])


def _with_examples(metric: Metric, update_state: Callable[..., Any]) -> Callable[..., Any]:
    """Return `update_state` of a metric, called with only the rows of examples in its tensors; scalars are kept."""
    knows_padding = getattr(metric, "knows_padding", False)

    def update(*args: Any, **kwargs: Any) -> object:
        leaves = tf.nest.flatten((args, kwargs))
        of_rows = [i for i, leaf in enumerate(leaves) if isinstance(leaf, tf.Tensor) and leaf.shape.rank != 0]
        for i, leaf in zip(of_rows, no_row_if_empty([leaves[i] for i in of_rows], BATCH.has_any), strict=True):
            leaves[i] = leaf if knows_padding else select_valid_rows(leaf)
        args, kwargs = tf.nest.pack_sequence_as((args, kwargs), leaves)
        return update_state(*args, **kwargs)

    return update
