"""Products on TensorFlow in which no factor is rounded."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_FIRST_HALF = -(2**16)  # sign, exponent and the first bits of a float32: those that a bfloat16 has


def exact_product(ones: Any, values: Any, *, transposed: bool = False) -> Any:
    """Return the product of a matrix of ones and zeros with another one; sums are float32.

    `tf.matmul` takes no precision, and TPUs multiply float32 as bfloat16, newer GPUs as TensorFloat-32. So a float32
    is split into three numbers that are exact in these, and their products are added. Smaller floats need no split:
    bfloat16 is exact in both, float16 in TensorFloat-32, and on TPUs nobody uses it.

    Args:
        ones: Matrix of ones and zeros, in the dtype of `values`.
        values: Matrix of floats.
        transposed: Whether `ones` is to be transposed first.
    """
    if values.dtype == tf.float64:
        return tf.matmul(ones, values, transpose_a=transposed)
    ones = tf.cast(ones, tf.float32)
    parts = _split(values) if values.dtype == tf.float32 else [tf.cast(values, tf.float32)]
    first, *others = (tf.matmul(ones, part, transpose_a=transposed) for part in parts)
    return first + tf.add_n(others) if others else first


def _split(values: Any) -> list[Any]:
    """Return three float32 of eight bits each that add up to `values`."""
    first = _first_half(values)
    second = _first_half(values - first)
    return [first, second, values - first - second]


def _first_half(values: Any) -> Any:
    bits = tf.bitwise.bitwise_and(tf.bitcast(values, tf.int32), _FIRST_HALF)
    return tf.bitcast(bits, tf.float32)
