"""Activations of TensorFlow Addons 0.23, on Keras 3."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tpu_ext.dropin.errors import out_of_reach

_register = keras.saving.register_keras_serializable(package="Addons")


@_register
def mish(x: Any) -> Any:
    """Return x * tanh(softplus(x))."""
    return x * ops.tanh(ops.softplus(x))


@_register
def gelu(x: Any, approximate: bool = True) -> Any:
    """Return `keras.ops.gelu`; Addons approximates by default."""
    return ops.gelu(x, approximate=approximate)


def _check_bounds(lower: float, upper: float) -> None:
    if lower > upper:
        raise ValueError(f"The value of lower is {lower} and should not be higher than upper, which is {upper}.")


@_register
def hardshrink(x: Any, lower: float = -0.5, upper: float = 0.5) -> Any:
    """Return x, and 0 between the bounds."""
    _check_bounds(lower, upper)
    return x * ops.cast(ops.logical_or(x < lower, x > upper), x.dtype)


@_register
def softshrink(x: Any, lower: float = -0.5, upper: float = 0.5) -> Any:
    """Return how far x is outside of the bounds."""
    _check_bounds(lower, upper)
    return ops.minimum(x - lower, 0) + ops.maximum(x - upper, 0)


@_register
def lisht(x: Any) -> Any:
    """Return x * tanh(x)."""
    return x * ops.tanh(x)


@_register
def snake(x: Any, frequency: float = 1) -> Any:
    """Return x with a square of a sine around it."""
    return x + (1 - ops.cos(2 * frequency * x)) / (2 * frequency)


@_register
def tanhshrink(x: Any) -> Any:
    """Return x - tanh(x)."""
    return x - ops.tanh(x)


@_register
def sparsemax(logits: Any, axis: int = -1) -> Any:
    """Return the point of the simplex that is next to the logits."""
    # Not keras.ops.sparsemax, whose numbers (Keras 3.15) do not sum up to 1.
    logits = ops.moveaxis(ops.convert_to_tensor(logits), axis, -1)
    ordered = ops.flip(ops.sort(logits, axis=-1), axis=-1)
    sums, places = ops.cumsum(ordered, axis=-1), ops.arange(1, logits.shape[-1] + 1, dtype=logits.dtype)
    count = ops.sum(ops.cast(1 + places * ordered > sums, "int32"), axis=-1, keepdims=True)
    threshold = (ops.take_along_axis(sums, count - 1, axis=-1) - 1) / ops.cast(count, logits.dtype)
    return ops.moveaxis(ops.maximum(logits - threshold, 0), -1, axis)


@_register
def rrelu(x: Any, lower: float = 0.125, upper: float = 1 / 3, training: Any = None, **random: Any) -> Any:
    """Return x, and less of what is below zero; in inference.

    Args:
        x: A tensor.
        lower: The least slope below zero.
        upper: The greatest slope below zero.
        training: Whether the slope is random, which has no counterpart.
        random: Without effect in inference.
    """
    if training is None or training is True or not isinstance(training, bool | int):
        raise out_of_reach(
            what="tfa.activations.rrelu in training",
            why="its slopes are random, and a function has no state to draw them from",
            write="keras.activations.leaky_relu, or a layer that has a keras.random.SeedGenerator",
        )
    return ops.where(x >= 0, x, (lower + upper) / 2 * x)
