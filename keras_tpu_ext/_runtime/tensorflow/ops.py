"""Operations for layers on TensorFlow: exact one-hot products, values and shapes.

TensorFlow has no `precision` argument: a float32 product is bfloat16 on TPUs and TensorFloat-32 on newer GPUs. So
numbers are split into parts that are exact in these formats, and the products of the parts are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime import compat
from keras_tpu_ext._runtime.common.types import Array, Variable
from keras_tpu_ext._runtime.compat import add_counter as add_counter
from keras_tpu_ext._runtime.compat import in_symbolic_call as in_symbolic_call
from keras_tpu_ext._runtime.compat import no_autocast as no_autocast
from keras_tpu_ext._runtime.tensorflow.replicas import native

_UNSPLIT = ("bfloat16", "uint8", "float64")  # with 8 significant bits, or not a dtype of matrix units
_BFLOAT16_BITS = -(2**16)  # mask of the bits of a float32 that a bfloat16 keeps


def one_hot_matmul(one_hot: tf.Tensor, values: tf.Tensor, *, transposed: bool = False) -> tf.Tensor:
    """Multiply a one-hot matrix with `values`, summing in float32; see `training/protocols.py`."""
    parts = _parts(values)
    return tf.add_n([tf.matmul(tf.cast(one_hot, part.dtype), part, transpose_a=transposed) for part in parts])


def one_hot_einsum(values: tf.Tensor, *choices: tuple[str, tf.Tensor]) -> tf.Tensor:
    """Gather from `values` by one einsum for each of `choices`; see `training/protocols.py`."""
    parts = _parts(values)
    for equation, choice in choices:
        parts = [tf.einsum(equation, tf.cast(choice, part.dtype), part) for part in parts]
        if choice.dtype != tf.bool:  # the result may have more bits than the next product keeps
            parts = _parts(_rounded(tf.add_n(parts), values.dtype))
    return tf.cast(tf.add_n(parts), values.dtype)


def _rounded(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(tf.round(values) if dtype.is_integer else values, dtype)


def _parts(values: tf.Tensor) -> list[tf.Tensor]:
    """Split `values` into summands, in float32 or float64, that no device rounds in a product."""
    wide = tf.cast(values, tf.float64 if values.dtype == tf.float64 else tf.float32)
    return [wide] if values.dtype.name in _UNSPLIT else _parts_of_8_bits(wide)


def _parts_of_8_bits(values: tf.Tensor) -> list[tf.Tensor]:
    """Split `values` into three summands of 8 significant bits; the gradient goes through the last one."""
    first = _to_bfloat16_bits(values)
    second = _to_bfloat16_bits(values - first)
    return [first, second, values - first - second]


def _to_bfloat16_bits(values: tf.Tensor) -> tf.Tensor:
    bits = tf.bitwise.bitwise_and(tf.bitcast(values, tf.int32), _BFLOAT16_BITS)
    return tf.bitcast(bits, tf.float32)


def value_of(variable: Variable) -> Array | None:
    """Return the value of `variable` as an array; `None` in a graph of TensorFlow 1."""
    with tf.init_scope():
        return native(variable).numpy() if tf.executing_eagerly() else None


def ensure_shape(values: tf.Tensor, shape: Sequence[int | None]) -> tf.Tensor:
    """Set the static shape of `values`; `None` means any size."""
    return tf.ensure_shape(values, shape)


def __getattr__(name: str) -> Any:  # the functions of `keras.ops`
    return getattr(compat.ops, name)
