"""What layers do with values beyond `keras.ops`: pick some of them, and know their shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

_OF_8_BITS = ("bfloat16", "uint8")  # numbers with no more significant bits than matrix units multiply at once


def pick(values: Any, *choices: tuple[str, Any]) -> Any:
    """Return `values` after one einsum with a choice after the other, to the last bit and in their own dtype.

    A product is what TPUs do many times faster than they gather.

    Args:
        values: Finite numbers.
        *choices: Each an equation, as for `einsum`, and its first tensor, of booleans: at most one of those that are
            summed over is true. The second tensor is `values`, or what the choice before has made of them.
    """
    wide = jnp.promote_types(values.dtype, jnp.float32)
    # A product of float32 is otherwise one of bfloat16 on TPUs, and of 11 bits on GPUs.
    precision = None if str(values.dtype) in _OF_8_BITS else jax.lax.Precision.HIGHEST
    picked = values.astype(wide)
    for equation, choice in choices:
        picked = jnp.einsum(equation, choice.astype(wide), picked, precision=precision)
    return picked.astype(values.dtype)


def with_shape(values: Any, shape: Sequence[int | None]) -> Any:
    """Return `values`: on JAX every shape is known."""
    return values
