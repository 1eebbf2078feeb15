"""What a variable holds on JAX, also while a step that uses it is traced.

Private names of Keras that this module leans on (tests/_runtime/test_jax_private_names.py watches them):
`Variable._value`.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from keras_tpu_ext._runtime._keras3_names import asks_for_shapes


def value_at_call(variable: Any) -> Any:
    """Return what `variable` holds, while a layer is called; `None` where it cannot be seen, or shapes are asked for.

    In a traced step `variable.value` would be what stands for it.
    """
    value = variable._value
    if asks_for_shapes() or isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array):
        return None
    return np.asarray(value) if value.is_fully_addressable and not value.is_deleted() else None
