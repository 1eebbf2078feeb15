"""Activations of TensorFlow Addons 0.23, on Keras 3."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

_register = keras.saving.register_keras_serializable(package="Addons")


@_register
def mish(x: Any) -> Any:
    """Return x * tanh(softplus(x))."""
    return x * ops.tanh(ops.softplus(x))


@_register
def gelu(x: Any, approximate: bool = True) -> Any:
    """Return `keras.ops.gelu`, approximated by default as in Addons 0.23."""
    return ops.gelu(x, approximate=approximate)
