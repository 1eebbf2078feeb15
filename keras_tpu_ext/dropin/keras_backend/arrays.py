"""Functions of `keras.backend` on JAX arrays, with the arguments and numbers of Keras 2.

Only those are here that Keras 3 has in a form which needs more than TensorFlow's functions: all others are made of
`tf.*` alone, and the dispatcher takes these to JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from jax import numpy as jnp
from keras import ops

Array = Any


def _reduction(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return a reduction as TensorFlow has it, in the type of `x`; truths are counted as numbers."""

    def reduce(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
        x = ops.cast(x, keras.config.floatx()) if ops.dtype(x) == "bool" else x
        return function(x, axis=axis, keepdims=keepdims)

    return reduce


def _sparse_categorical_crossentropy(
    target: Array, output: Array, from_logits: bool = False, axis: int = -1, ignore_class: int | None = None
) -> Array:
    """Return the cross entropy for labels that are numbers; a label out of range gives NaN, as on GPUs."""
    output, epsilon = ops.convert_to_tensor(output), keras.config.epsilon()
    logits = jnp.moveaxis(output if from_logits else ops.log(ops.clip(output, epsilon, 1 - epsilon)), axis, -1)
    labels = jnp.reshape(ops.cast(target, "int32"), logits.shape[:-1])
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return loss if ignore_class is None else ops.where(labels == ignore_class, 0.0, loss)


def _softmax(x: Array, axis: Any = -1) -> Array:
    if len(x.shape) <= 1:
        raise ValueError(f"K.softmax needs a tensor of two axes or more, not {x.shape}")
    return jnp.exp(jnp.asarray(x) - ops.logsumexp(x, axis, keepdims=True))


def _moving_average_update(x: Array, value: Array, momentum: Array) -> Array:
    return _update(x, x - (x - ops.cast(value, x.dtype)) * (1 - momentum))


def _update(x: Array, new_x: Array) -> Array:
    """Assign to a variable, and return its value."""
    x.assign(new_x)
    return x.value


def _resize_images(
    x: Array, height_factor: int, width_factor: int, data_format: str, interpolation: str = "nearest"
) -> Array:
    first = data_format == "channels_first"
    x = ops.transpose(x, (0, 2, 3, 1)) if first else ops.convert_to_tensor(x)
    x = tf.image.resize(x, (x.shape[1] * height_factor, x.shape[2] * width_factor), method=interpolation)
    return ops.transpose(x, (0, 3, 1, 2)) if first else x


def _switch(condition: Array, then_expression: Any, else_expression: Any) -> Array:
    """Choose between tensors, or functions that return them: elementwise, or one of both for a scalar condition."""
    condition = ops.cast(condition, "bool")
    branches = [one if callable(one) else lambda one=one: one for one in (then_expression, else_expression)]
    if not condition.shape:
        return tf.cond(condition, *branches)
    then, other = (ops.convert_to_tensor(branch()) for branch in branches)
    if condition.ndim > then.ndim:
        raise ValueError(f"K.switch: the condition {condition.shape} has more axes than what it chooses {then.shape}")
    if condition.ndim > 1:  # a vector chooses along the last axis, as broadcasting has it
        condition = ops.reshape(condition, (*condition.shape, *(1,) * (then.ndim - condition.ndim)))
    return ops.where(condition, then, other)


def _ctc_batch_cost(y_true: Array, y_pred: Array, input_length: Array, label_length: Array) -> Array:
    """Return the CTC loss of each example; the last class is the blank."""
    scores = ops.log(ops.convert_to_tensor(y_pred) + keras.config.epsilon())
    lengths = (ops.cast(ops.squeeze(one, -1), "int32") for one in (label_length, input_length))
    loss = ops.ctc_loss(ops.cast(y_true, "int32"), scores, *lengths, mask_index=scores.shape[-1] - 1)
    return ops.expand_dims(loss, 1)


# By argument: on values of JAX these, on all others Keras's own.
ARRAYS: dict[str, Callable[..., Any]] = {
    "ctc_batch_cost": _ctc_batch_cost,
    "in_top_k": lambda predictions, targets, k: tf.math.in_top_k(ops.cast(targets, "int32"), predictions, k),
    "mean": _reduction(tf.reduce_mean),
    "moving_average_update": _moving_average_update,
    "resize_images": _resize_images,
    "rnn": lambda *args, **kwargs: keras.src.backend.rnn(*args, **kwargs),  # Keras 3 has it with the same arguments
    "softmax": _softmax,
    "sparse_categorical_crossentropy": _sparse_categorical_crossentropy,
    "std": _reduction(tf.math.reduce_std),
    "switch": _switch,
    "update": _update,
    "update_add": lambda x, increment: _update(x, x + increment),
    "update_sub": lambda x, decrement: _update(x, x - decrement),
    "var": _reduction(tf.math.reduce_variance),
}
