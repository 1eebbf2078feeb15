"""What layers do with values beyond `keras.ops`: pick some of them, and know their shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_AT_ONCE = ("bfloat16", "uint8", "float64")  # of 8 significant bits, or such as no matrix unit takes


def pick(values: Any, *choices: tuple[str, Any]) -> Any:
    """Return `values` after one einsum with a choice after the other, to the last bit and in their own dtype.

    A product is what TPUs do many times faster than they gather.

    Args:
        values: Finite numbers.
        *choices: Each an equation, as for `einsum`, and its first tensor, of booleans: at most one of those that are
            summed over is true. The second tensor is `values`, or what the choice before has made of them.
    """
    wide = tf.float64 if values.dtype == tf.float64 else tf.float32
    parts = [tf.cast(values, wide)]
    if values.dtype.name not in _AT_ONCE:
        parts = _parts_of_8_bits(parts[0])
    for equation, choice in choices:
        parts = [tf.einsum(equation, tf.cast(choice, wide), part) for part in parts]
    return tf.cast(tf.add_n(parts), values.dtype)


def _parts_of_8_bits(values: Any) -> list[Any]:
    """Return three tensors that add up to `values`, each of numbers with at most 8 significant bits.

    TensorFlow has no word for a product of float32 that is one on TPUs, where it is one of bfloat16, and on GPUs,
    where it is one of 11 bits. It has no gradient through bits either: that of the whole goes through the last part.
    """
    upper = _upper_bits(values)
    rest = values - upper
    middle = _upper_bits(rest)
    return [upper, middle, rest - middle]


def _upper_bits(values: Any) -> Any:
    """Return float32 numbers without the lower half of their bits."""
    mask = tf.constant(0xFFFF0000, tf.uint32)
    return tf.bitcast(tf.bitwise.bitwise_and(tf.bitcast(values, tf.uint32), mask), tf.float32)


def with_shape(values: Any, shape: Sequence[int | None]) -> Any:
    """Return `values`, of which it is known that they have `shape`; `None` is for any size."""
    return tf.ensure_shape(values, shape)
