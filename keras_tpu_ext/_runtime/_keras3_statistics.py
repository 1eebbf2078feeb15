"""Batch normalisation on a replica that has no example: it adds nothing to the statistics.

Private names of Keras that this module leans on (tests/_runtime/test_private_names.py watches them):
`BatchNormalization._moments` and `_reduction_axes`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_tpu_ext._runtime._tf_replicas import sum_over_replicas


class _Replica(threading.local):
    """Whether the replica that runs in this thread has any example."""

    has_any: Any = None


_REPLICA = _Replica()
_HOOKED: dict[int, int] = {}  # id of a layer: how many replicas are inside the block at the moment


@contextlib.contextmanager
def statistics_only_if(layers: Sequence[Any], has_any: Any) -> Iterator[None]:
    """Within the block the batch normalisations among `layers` learn only where there is any example.

    Args:
        layers: Layers of a model, at any depth.
        has_any: Whether this replica has any example; `None` where that is certain, and nothing is done.
    """
    normalisations = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    if has_any is None or not normalisations:
        yield
        return
    before, _REPLICA.has_any = _REPLICA.has_any, has_any
    for layer in normalisations:
        _hook(layer)
    try:
        yield
    finally:
        for layer in normalisations:
            _unhook(layer)
        _REPLICA.has_any = before


def _hook(layer: Any) -> None:
    _HOOKED[id(layer)] = _HOOKED.get(id(layer), 0) + 1
    if _HOOKED[id(layer)] == 1:  # replicas take turns: the first one in hooks, the last one out unhooks
        stock = layer._moments
        layer.__dict__["_moments"] = lambda inputs, mask: _moments(layer, stock, inputs, mask)


def _unhook(layer: Any) -> None:
    _HOOKED[id(layer)] -= 1
    if not _HOOKED[id(layer)]:
        del _HOOKED[id(layer)]
        del layer.__dict__["_moments"]


def _moments(layer: Any, stock: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Return mean and variance; on a replica without examples those that change nothing."""
    if layer.synchronized and mask is None:
        return _moments_of_all(inputs, layer._reduction_axes)
    mean, variance = stock(inputs, mask)
    kept = tf.cast(layer.moving_mean.value, mean.dtype), tf.cast(layer.moving_variance.value, variance.dtype)
    return tf.where(_REPLICA.has_any, mean, kept[0]), tf.where(_REPLICA.has_any, variance, kept[1])


def _moments_of_all(inputs: Any, axes: Any) -> tuple[Any, Any]:
    """Return mean and variance over all replicas, as `keras.ops.moments(synchronized=True)` with fewer sums."""
    there = tf.cast(_REPLICA.has_any, inputs.dtype)
    size = tf.cast(tf.size(inputs), inputs.dtype)
    total, squares = tf.reduce_sum(inputs, axes) * there, tf.reduce_sum(tf.square(inputs), axes) * there
    count = size / tf.cast(tf.size(total), inputs.dtype) * there
    total, squares, count = sum_over_replicas([total, squares, count])  # `tf.distribute` sums gradients too
    mean = tf.math.divide_no_nan(total, count)
    return mean, tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
