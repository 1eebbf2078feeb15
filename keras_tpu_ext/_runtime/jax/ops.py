"""Operations for layers on JAX: products with ones and zeros that round nothing, values and shapes.

Private names of Keras that this module leans on (tests/_runtime/test_jax_private_names.py watches them):
`Variable._value`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from keras_tpu_ext._runtime.compat.keras3 import add_counter as add_counter
from keras_tpu_ext._runtime.compat.keras3 import in_symbolic_call as in_symbolic_call
from keras_tpu_ext._runtime.compat.keras3 import no_autocast as no_autocast
from keras_tpu_ext._runtime.compat.keras3_ops import *  # noqa: F403

_OF_8_BITS = ("bfloat16", "uint8")  # numbers with no more significant bits than matrix units multiply at once


def one_hot_matmul(one_hot: Any, values: Any, *, transposed: bool = False) -> Any:
    """Return the product of a matrix of ones and zeros with another one; sums are float32.

    A TPU multiplies float32 in bfloat16 parts, by default the first one only. With the highest precision the compiler
    takes the three parts that make up a float32, and sees that the ones need but one.

    Args:
        one_hot: Matrix of ones and zeros, in the dtype of `values`.
        values: Matrix of floats.
        transposed: Whether `one_hot` is to be transposed first.
    """
    over = (((0 if transposed else 1,), (0,)), ((), ()))
    wide = jnp.promote_types(values.dtype, jnp.float32)
    return lax.dot_general(one_hot, values, over, precision=_precision(values), preferred_element_type=wide)


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
    wide = jnp.promote_types(values.dtype, jnp.float32)
    picked = values.astype(wide)
    for equation, choice in choices:
        picked = jnp.einsum(equation, choice.astype(wide), picked, precision=_precision(values))
        if choice.dtype != bool:  # what comes out may have more bits than the next product keeps
            picked = _rounded(picked, values.dtype).astype(wide)
    return picked.astype(values.dtype)


def _rounded(values: Any, dtype: Any) -> Any:
    return (jnp.round(values) if jnp.issubdtype(dtype, jnp.integer) else values).astype(dtype)


def _precision(values: Any) -> Any:
    """Return how to multiply: float32 is otherwise multiplied as bfloat16 on TPUs, and with 11 bits on GPUs."""
    return None if str(values.dtype) in _OF_8_BITS else lax.Precision.HIGHEST


def value_of(variable: Any) -> Any:
    """Return what `variable` holds as an array; `None` where this process cannot see it.

    In a traced step `variable.value` would be what stands for it. In `fit` there is none: Keras has taken it away.
    """
    value = variable._value
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer) or value.is_deleted():
        return None
    return np.asarray(value) if value.is_fully_addressable or value.is_fully_replicated else None


def ensure_shape(values: Any, shape: Sequence[int | None]) -> Any:
    """Return `values`: on JAX every shape is known."""
    return values
