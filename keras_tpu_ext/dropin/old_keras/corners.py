"""Gradients at corners, in layers, losses and regularizers of Keras, too, which are those of TensorFlow."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from keras import ops

from keras_tpu_ext.dropin.functions.elementwise import FUNCTIONS, absolute, maximum, minimum
from keras_tpu_ext.dropin.patching import Function, wrap
from keras_tpu_ext.dropin.report import is_old_program

_BACKEND = "keras.src.backend.jax"


def install() -> None:
    """Compute what has a corner as TensorFlow did; the values are those of Keras."""
    ours: dict[str, Function] = {"maximum": maximum, "minimum": minimum, "absolute": absolute}
    wrap({f"{_BACKEND}.numpy.{name}": functools.partial(_as_tensorflow, one) for name, one in ours.items()})
    wrap({f"{_BACKEND}.nn.leaky_relu": _leaky_relu})


def _as_tensorflow(ours: Function, stock: Function, *args: Any, **kwargs: Any) -> Any:
    found, given = stock(*args, **kwargs), (*args, *kwargs.values())
    if not is_old_program() or not jnp.issubdtype(found.dtype, jnp.floating) or any(map(jnp.iscomplexobj, given)):
        return found
    return ours(*(ops.convert_to_tensor(one, found.dtype) for one in given))


def _leaky_relu(stock: Function, x: Any, negative_slope: float = 0.2) -> Any:
    if not is_old_program():
        return stock(x, negative_slope)
    return FUNCTIONS["nn.leaky_relu"](ops.convert_to_tensor(x), negative_slope)
