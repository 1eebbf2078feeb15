"""What layers know of values on JAX: what a variable holds while a step is traced, and shapes.

Private names of Keras that this module leans on (tests/_runtime/test_jax_private_names.py watches them):
`Variable._value`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


def value_of(variable: Any) -> Any:
    """Return what `variable` holds as an array; `None` where this process cannot see it.

    In a traced step `variable.value` would be what stands for it. In `fit` there is none: Keras has taken it away.
    """
    value = variable._value
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer) or value.is_deleted():
        return None
    return np.asarray(value) if value.is_fully_addressable or value.is_fully_replicated else None


def with_shape(values: Any, shape: Sequence[int | None]) -> Any:
    """Return `values`: on JAX every shape is known."""
    return values
