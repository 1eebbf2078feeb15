"""Functions of Keras 3's `keras.ops`, which Keras 2 lacks, in terms of TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Array, Tensor

abs = tf.abs
all = tf.reduce_all
bitwise_and = tf.bitwise.bitwise_and
bitwise_left_shift = tf.bitwise.left_shift
bitwise_or = tf.bitwise.bitwise_or
bitwise_right_shift = tf.bitwise.right_shift
bitwise_xor = tf.bitwise.bitwise_xor
cast = tf.cast
clip = tf.clip_by_value
concatenate = tf.concat
cond = tf.cond
custom_gradient = tf.custom_gradient
divide_no_nan = tf.math.divide_no_nan
equal = tf.equal
expand_dims = tf.expand_dims
isfinite = tf.math.is_finite
logical_and = tf.logical_and
logical_not = tf.logical_not
max = tf.reduce_max
maximum = tf.maximum
ones = tf.ones
ones_like = tf.ones_like
pad = tf.pad
reshape = tf.reshape
round = tf.round
rsqrt = tf.math.rsqrt
segment_sum = tf.math.unsorted_segment_sum
sqrt = tf.sqrt
square = tf.square
stack = tf.stack
stop_gradient = tf.stop_gradient
sum = tf.reduce_sum
take = tf.gather
transpose = tf.transpose
where = tf.where
zeros = tf.zeros
zeros_like = tf.zeros_like


def arange(stop: Any, dtype: Any = None) -> tf.Tensor:
    """Return the numbers from 0 to `stop`, exclusive."""
    return tf.range(tf.cast(stop, dtype), dtype=dtype)


def convert_to_numpy(tensor: Tensor) -> Array:
    """Return a tensor or a variable as an array."""
    return tf.convert_to_tensor(tensor).numpy()


def convert_to_tensor(value: Tensor, dtype: Any = None) -> tf.Tensor:
    """Return a value as a tensor."""
    tensor = tf.convert_to_tensor(value)
    return tensor if dtype is None else tf.cast(tensor, dtype)


def flip(tensor: Tensor, axis: int) -> tf.Tensor:
    """Return a tensor in the reverse order along `axis`."""
    return tf.reverse(tensor, [axis])


def shape(tensor: Tensor) -> tuple[Any, ...]:
    """Return the sizes, as Python numbers where they are static."""
    dynamic: Any = None if tensor.shape.is_fully_defined() else tf.shape(tensor)
    return tuple(dynamic[i] if size is None else size for i, size in enumerate(tensor.shape))
