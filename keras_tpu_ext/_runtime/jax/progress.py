"""How far a model has come, from counters that Keras keeps anyway (Keras 3 on JAX).

While `fit` runs they are not in the model's variables; a callback that asks for `self.model` brings them there, and
must do so in a hook that Keras calls in the main thread: one that tells of a begin, or an epoch's end.

Private names of Keras that this module leans on (tests/_runtime/test_jax_private_names.py watches them):
`Trainer._loss_tracker`, `Optimizer._iterations`.
"""

from __future__ import annotations

from typing import Any

import keras

# A sum of ones stops being exact at two to the power of the significand's bits.
_EXACT_BELOW = {"bfloat16": 2.0**8, "float16": 2.0**11, "float32": 2.0**24, "float64": 2.0**53}


def examples_seen(model: Any) -> float | None:
    """Return how many examples `model` has trained on in this epoch, or `None`; see `_tf_counts.examples_seen`."""
    count = getattr(getattr(model, "_loss_tracker", None), "count", None)
    if count is None:
        return None
    seen = float(keras.ops.convert_to_numpy(count))
    exact_below = _EXACT_BELOW.get(keras.backend.standardize_dtype(count.dtype), 0.0)
    return seen if 0.0 < seen < exact_below else None


def train_steps(model: Any) -> int | None:
    """Return how many train steps the optimizer of `model` has seen, or `None`; waits for the device.

    A step skipped by loss scaling is not in it.
    """
    optimizer = getattr(model, "optimizer", None)
    steps = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_iterations", None)
    return None if steps is None else int(keras.ops.convert_to_numpy(steps))
