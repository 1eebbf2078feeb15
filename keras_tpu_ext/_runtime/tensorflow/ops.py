"""Operations for layers on TensorFlow: products with ones and zeros that round nothing, values and shapes.

TensorFlow has no word for a product of float32 that is one on TPUs, where it is one of bfloat16, and on newer GPUs,
where it is one of TensorFloat-32. So numbers are split into some that are exact in these, whose products are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.tensorflow.replicas import native

_AT_ONCE = ("bfloat16", "uint8", "float64")  # of 8 significant bits, or such as no matrix unit takes
_FIRST_HALF = -(2**16)  # sign, exponent and the first bits of a float32: those that a bfloat16 has


def one_hot_matmul(one_hot: Any, values: Any, *, transposed: bool = False) -> Any:
    """Return the product of a matrix of ones and zeros with another one; sums are float32.

    Args:
        one_hot: Matrix of ones and zeros, in the dtype of `values`.
        values: Matrix of floats.
        transposed: Whether `one_hot` is to be transposed first.
    """
    parts = _parts(values)
    return tf.add_n([tf.matmul(tf.cast(one_hot, part.dtype), part, transpose_a=transposed) for part in parts])


def one_hot_einsum(values: Any, *choices: tuple[str, Any]) -> Any:
    """Return `values` after one einsum with a choice after the other, in their own dtype.

    A product is what TPUs do many times faster than they gather.

    Args:
        values: Finite numbers.
        *choices: Each an equation, as for `einsum`, and its first tensor. The second is `values`, or what the choice
            before has made of them. The first is of booleans, of which at most one of those that are summed over is
            true, and then every bit is kept; or of float32 weights of at most 8 significant bits, and then the result
            is rounded to the dtype of `values`.
    """
    parts = _parts(values)
    for equation, choice in choices:
        parts = [tf.einsum(equation, tf.cast(choice, part.dtype), part) for part in parts]
        if choice.dtype != tf.bool:  # what comes out may have more bits than the next product keeps
            parts = _parts(_rounded(tf.add_n(parts), values.dtype))
    return tf.cast(tf.add_n(parts), values.dtype)


def _rounded(values: Any, dtype: Any) -> Any:
    return tf.cast(tf.round(values) if dtype.is_integer else values, dtype)


def _parts(values: Any) -> list[Any]:
    """Return tensors that add up to `values`, in float32 or float64, which no device rounds in a product."""
    wide = tf.cast(values, tf.float64 if values.dtype == tf.float64 else tf.float32)
    return [wide] if values.dtype.name in _AT_ONCE else _parts_of_8_bits(wide)


def _parts_of_8_bits(values: Any) -> list[Any]:
    """Return three tensors that add up to `values`, each of numbers with at most 8 significant bits.

    There is no gradient through bits: that of the whole goes through the last part.
    """
    first = _first_half(values)
    second = _first_half(values - first)
    return [first, second, values - first - second]


def _first_half(values: Any) -> Any:
    bits = tf.bitwise.bitwise_and(tf.bitcast(values, tf.int32), _FIRST_HALF)
    return tf.bitcast(bits, tf.float32)


def value_of(variable: Any) -> Any:
    """Return what `variable` holds as an array; `None` in a graph of TensorFlow 1, which has no values."""
    with tf.init_scope():
        return native(variable).numpy() if tf.executing_eagerly() else None


def ensure_shape(values: Any, shape: Sequence[int | None]) -> Any:
    """Return `values`, of which it is known that they have `shape`; `None` is for any size."""
    return tf.ensure_shape(values, shape)
