"""Products on JAX in which no factor is rounded."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax


def exact_product(ones: Any, values: Any, *, transposed: bool = False) -> Any:
    """Return the product of a matrix of ones and zeros with another one; sums are float32.

    A TPU multiplies float32 in bfloat16 parts, by default the first one only. With the highest precision the compiler
    takes the three parts that make up a float32, and sees that the ones need but one.

    Args:
        ones: Matrix of ones and zeros, in the dtype of `values`.
        values: Matrix of floats.
        transposed: Whether `ones` is to be transposed first.
    """
    over = (((0 if transposed else 1,), (0,)), ((), ()))
    wide = jnp.promote_types(values.dtype, jnp.float32)
    precision = lax.Precision.HIGHEST if values.dtype == wide else None
    return lax.dot_general(ones, values, over, precision=precision, preferred_element_type=wide)
