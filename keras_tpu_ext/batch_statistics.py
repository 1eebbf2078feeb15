"""Statistics of the whole batch, for layers and losses that look at more than one example."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext import _runtime


def batch_sum(values: Any) -> Any:
    """Return the sum of `values` over the examples of the whole batch, on all replicas.

    Use it in a layer or a loss in place of `keras.ops.sum(values, axis=0)`: the result is the same on any number of
    replicas, and rows that only fill a batch up do not count. Gradients flow through it.

    Args:
        values: Tensor whose first dimension is the batch, on TensorFlow this replica's part of it.

    Returns:
        A tensor of the shape of `values` without the first dimension.

    Example:
        ```python
        import keras
        import keras_tpu_ext as kte


        class Shares(keras.layers.Layer):
            def call(self, x):
                return x / kte.batch_sum(x)
        ```
    """
    return _runtime.batch.batch_sum(values)


def batch_mean(values: Any) -> Any:
    """Return the mean of `values` over the examples of the whole batch, on all replicas.

    Use it in a layer or a loss in place of `keras.ops.mean(values, axis=0)`: the result is the same on any number of
    replicas, and rows that only fill a batch up do not count. Gradients flow through it.

    Args:
        values: Tensor whose first dimension is the batch, on TensorFlow this replica's part of it.

    Returns:
        A tensor of the shape of `values` without the first dimension.

    Example:
        ```python
        import keras
        import keras_tpu_ext as kte


        class Centers(keras.layers.Layer):
            def call(self, x):
                return x - kte.batch_mean(x)
        ```
    """
    return _runtime.batch.batch_mean(values)
