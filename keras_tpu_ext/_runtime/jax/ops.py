"""Operations for layers on JAX: exact one-hot products, values and shapes."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax
from keras.ops import *  # noqa: F403

from keras_tpu_ext._runtime.compat.keras3 import add_counter as add_counter
from keras_tpu_ext._runtime.compat.keras3 import in_symbolic_call as in_symbolic_call
from keras_tpu_ext._runtime.compat.keras3 import no_autocast as no_autocast

_OF_8_BITS = ("bfloat16", "uint8")  # no more significant bits than matrix units multiply at once


def one_hot_matmul(one_hot: jax.Array, values: jax.Array, *, transposed: bool = False) -> jax.Array:
    """Multiply a one-hot matrix with `values`, summing in float32; see `training/protocols.py`.

    A TPU multiplies float32 as bfloat16 parts, by default only the first one. At the highest precision the compiler
    takes all three parts of `values`, and recognises that the ones need only one.
    """
    over = (((0 if transposed else 1,), (0,)), ((), ()))
    wide = jnp.promote_types(values.dtype, jnp.float32)
    return lax.dot_general(one_hot, values, over, precision=_precision(values), preferred_element_type=wide)


def one_hot_einsum(values: jax.Array, *choices: tuple[str, jax.Array]) -> jax.Array:
    """Gather from `values` by one einsum for each of `choices`; see `training/protocols.py`."""
    wide = jnp.promote_types(values.dtype, jnp.float32)
    picked = values.astype(wide)
    for equation, choice in choices:
        picked = jnp.einsum(equation, choice.astype(wide), picked, precision=_precision(values))
        if choice.dtype != bool:  # the result may have more bits than the next product keeps
            picked = _rounded(picked, values.dtype).astype(wide)
    return picked.astype(values.dtype)


def _rounded(values: jax.Array, dtype: jnp.dtype) -> jax.Array:
    return (jnp.round(values) if jnp.issubdtype(dtype, jnp.integer) else values).astype(dtype)


def _precision(values: jax.Array) -> lax.Precision | None:
    """Return the precision for an exact product: by default float32 is bfloat16 on TPUs, and 11 bits on GPUs."""
    return None if str(values.dtype) in _OF_8_BITS else lax.Precision.HIGHEST


def value_of(variable: keras.Variable) -> np.ndarray | None:
    """Return the value of `variable` as an array; `None` if this process cannot read it.

    `variable.value` would be a tracer in a traced step; in `fit` Keras deletes the values.
    """
    value = variable._value
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer) or value.is_deleted():
        return None
    return np.asarray(value) if value.is_fully_addressable or value.is_fully_replicated else None


def ensure_shape(values: jax.Array, shape: Sequence[int | None]) -> jax.Array:
    """Return `values`: on JAX every shape is static."""
    return values
