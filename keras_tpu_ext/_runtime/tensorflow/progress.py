"""How far a model has come, from counters that Keras keeps anyway (on TensorFlow)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# A sum of ones stops being exact at two to the power of the significand's bits.
_EXACT_BELOW = {"bfloat16": 2.0**8, "float16": 2.0**11, "float32": 2.0**24, "float64": 2.0**53}


def examples_seen(model: Any) -> float | None:
    """Return how many examples `model` has trained on in this epoch, or `None` where that is not known.

    Keras weighs its loss tracker by the batch size, so the tracker's `count` is exact with short batches and,
    summed over replicas, under `tf.distribute`; `evaluate` sets it back. A `train_step` of the user's own may
    leave it at zero (`None` here) or add one per step and replica (for the caller to tell). Waits for the
    device.
    """
    tracker = getattr(getattr(model, "compiled_loss", None), "_total_loss_mean", None)  # of Keras 2
    count = getattr(getattr(model, "_loss_tracker", tracker), "count", None)
    if count is None:
        return None
    seen = float(tf.convert_to_tensor(count))
    exact_below = _EXACT_BELOW.get(tf.as_dtype(count.dtype).name, 0.0)
    return seen if 0.0 < seen < exact_below else None


def train_steps(model: Any) -> int | None:
    """Return how many train steps the optimizer of `model` has seen, or `None`; waits for the device.

    `optimizer.iterations` divides by the accumulation steps, so the counter behind it is read. A step skipped
    by loss scaling is not in it. Where a dataset of unknown length ends under `steps_per_execution=1`, the
    graph has already added one for the batch that never came: no difference may reach over an epoch's end.
    """
    optimizer: Any = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    steps = getattr(inner, "_iterations", None)
    if steps is None and inner is not None:  # of Keras 2's optimizers.legacy, before their first step
        steps = inner.iterations
    return None if steps is None else int(tf.convert_to_tensor(steps))


def num_replicas(model: Any) -> int:
    """Return the number of replicas that train `model` in step."""
    return int(model.distribute_strategy.num_replicas_in_sync)


def device_name(model: Any) -> str:
    """Return `"TPU"` where `model` trains on one, whose generation TensorFlow does not know; else an empty text."""
    return "TPU" if isinstance(model.distribute_strategy, tf.distribute.TPUStrategy) else ""
