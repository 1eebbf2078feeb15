"""Batch normalisation and activity regularisers of Keras 2, without rows that are padded or stand in for none."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.patches import Patch, patched
from keras_tpu_ext._runtime.common.types import Layer, Model, Variable
from keras_tpu_ext._runtime.compat.keras2 import private
from keras_tpu_ext._runtime.tensorflow.batch import (
    BATCH,
    has_any_example,
    regularizer_of_examples,
    synchronizes,
    weighted_moments,
    weights_of,
)

BatchNormalizationBase: Any = private("layers.normalization.batch_normalization:BatchNormalizationBase")


@contextlib.contextmanager
def exclude_padding(model: Model) -> Iterator[None]:
    """Within the block, layers of `model` learn only from the examples of the current batch; see `batch_context`."""
    layers = list(model._flatten_layers())
    normalisations = [layer for layer in layers if isinstance(layer, BatchNormalizationBase)]
    patches = [one for layer in normalisations for one in _patches(layer, synchronizes(model, layer))]
    if BATCH.valid is not None:
        regularised = [layer for layer in layers if getattr(layer, "_activity_regularizer", None) is not None]
        patches += [(layer, "a layer's _activity_regularizer", regularizer_of_examples) for layer in regularised]
    with patched(patches):
        yield


def _patches(layer: Layer, synchronized: bool) -> list[Patch]:
    """Return the patches of a batch normalisation; see `patched`."""
    of = "a BatchNormalization's "
    if not synchronized and BATCH.valid is None:
        if BATCH.has_any is None:
            return []
        # `_assign_new_value` belongs to the fused kernel.
        return [(layer, f"{of}_assign_new_value", _assigning), (layer, f"{of}_assign_moving_average", _assigning)]
    moments = _Moments(layer, synchronized)
    patches: list[Patch] = [(layer, f"{of}_calculate_mean_and_var", lambda stock: moments)]
    changes = [] if synchronized else [_assigning]  # if synchronized, all replicas have the same
    if layer.fused:  # that kernel knows nothing about rows and replicas
        patches.append((layer, f"{of}fused", lambda fused: False))
        changes.append(moments.correcting)
    return [*patches, (layer, f"{of}_assign_moving_average", _composed(changes))]


def _composed(changes: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    return lambda stock: functools.reduce(lambda function, change: change(function), changes, stock)


def _assigning(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an assignment, to keep the values of a replica without examples."""

    def assign(variable: Variable, value: tf.Tensor, *args: Any) -> object:
        has_any = has_any_example()
        if has_any is not None:
            value = tf.where(has_any, value, tf.cast(variable, value.dtype))
        return stock(variable, value, *args)

    return assign


class _Moments:
    """Mean and variance of the examples only, in place of a layer's own."""

    def __init__(self, layer: Layer, synchronized: bool) -> None:
        self._layer = layer
        self._synchronized = synchronized
        self._count: Any = None

    def __call__(self, inputs: tf.Tensor, axes: Any, keep_dims: bool, mask: Any = None) -> tuple[Any, Any]:
        weights = weights_of(inputs)
        if mask is not None:
            weights *= tf.cast(mask, inputs.dtype)[..., tf.newaxis]
        mean, variance, count = weighted_moments(inputs, axes, weights, of_all_replicas=self._synchronized)
        self._count = tf.reduce_mean(count)  # of one channel, and so of each
        if not keep_dims:
            return mean, variance
        sizes = [1 if axis in axes else size for axis, size in enumerate(tf.unstack(tf.shape(inputs)))]
        return tf.reshape(mean, sizes), tf.reshape(variance, sizes)

    def correcting(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap an assignment of the variance, to apply Bessel's correction as the fused kernel does."""

        def assign(variable: Variable, value: tf.Tensor, *args: Any) -> object:
            if variable is self._layer.moving_variance:
                count = tf.cast(self._count, value.dtype)
                value = value * count / tf.maximum(count - 1, 1)
            return stock(variable, value, *args)

        return assign
