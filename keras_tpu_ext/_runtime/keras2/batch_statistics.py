"""Layers of Keras 2 that learn something from a batch as a whole: rows that are no examples do not count.

A row is no example if it stands in for none (see `tensorflow/empty_replicas.py`) or if it was padded. Batch
normalisation has its statistics from the examples alone, and activity regularisers have their sums.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.common.types import Layer, Variable
from keras_tpu_ext._runtime.compat.keras2 import private
from keras_tpu_ext._runtime.tensorflow.batch import BATCH
from keras_tpu_ext._runtime.tensorflow.batch_statistics import (
    has_any_example,
    moments_of_all,
    moments_of_rows,
    regularizer_of_examples,
    weights_of,
)

BatchNormalizationBase: Any = private("layers.normalization.batch_normalization").BatchNormalizationBase

_Place = tuple[Any, str, Callable[[Any], Any]]


@contextlib.contextmanager
def exclude_padding(layers: Sequence[Layer]) -> Iterator[None]:
    """Within the block `layers` learn from the examples of the batch at hand, see `batch_context`."""
    places: list[_Place] = []
    if BATCH.has_any is not None or BATCH.valid is not None:
        normalisations = [layer for layer in layers if isinstance(layer, BatchNormalizationBase)]
        places += [place for layer in normalisations for place in _places(layer)]
    if BATCH.valid is not None:
        regularised = [layer for layer in layers if getattr(layer, "_activity_regularizer", None) is not None]
        places += [(layer, "_activity_regularizer", regularizer_of_examples) for layer in regularised]
    with patched(places):
        yield


def _places(layer: Layer) -> list[_Place]:
    """Return the patches of a batch normalisation; see `patched`."""
    if not layer.synchronized and BATCH.valid is None:
        # `_assign_new_value` is of the fused kernel.
        return [(layer, "_assign_new_value", _assigning), (layer, "_assign_moving_average", _assigning)]
    moments = _Moments(layer)
    if layer.synchronized:  # every replica has what all of them have
        return [(layer, "_calculate_mean_and_var", lambda stock: moments)]
    correct = moments.corrected if layer.fused else None
    return [
        (layer, "_calculate_mean_and_var", lambda stock: moments),
        (layer, "fused", lambda fused: False),  # that kernel knows nothing of rows
        (layer, "_assign_moving_average", lambda stock: _assigning(stock, correct)),
    ]


def _assigning(stock: Callable[..., Any], correct: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return an assignment that keeps what a replica without examples has."""

    def assign(variable: Variable, value: tf.Tensor, *args: Any) -> Any:
        if correct is not None:
            value = correct(variable, value)
        there = has_any_example()
        if there is not None:
            value = tf.where(there, value, tf.cast(variable, value.dtype))
        return stock(variable, value, *args)

    return assign


class _Moments:
    """Mean and variance of the examples alone, in the place of a layer's own.

    Args:
        layer: The batch normalisation.
    """

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._count: Any = None

    def __call__(self, inputs: tf.Tensor, axes: Any, keep_dims: bool, mask: Any = None) -> tuple[Any, Any]:
        weights = weights_of(inputs)
        if mask is not None:
            weights *= tf.cast(mask, inputs.dtype)[..., tf.newaxis]
        function = moments_of_all if self._layer.synchronized else moments_of_rows
        mean, variance = function(inputs, axes, weights)
        channels = tf.cast(tf.size(mean), inputs.dtype)
        self._count = tf.reduce_sum(tf.broadcast_to(weights, tf.shape(inputs))) / channels
        if not keep_dims:
            return mean, variance
        sizes = [1 if axis in axes else size for axis, size in enumerate(tf.unstack(tf.shape(inputs)))]
        return tf.reshape(mean, sizes), tf.reshape(variance, sizes)

    def corrected(self, variable: Variable, value: tf.Tensor) -> Any:
        """Return the variance that the fused kernel keeps: that of a sample, with Bessel's correction."""
        if variable is not self._layer.moving_variance:
            return value
        count = tf.cast(self._count, value.dtype)
        return value * count / tf.maximum(count - 1, 1)
