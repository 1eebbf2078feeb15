"""Applying gradients that are already summed over replicas with a stock Keras 3 optimizer.

Private names of Keras that this module leans on (tests/_runtime/test_tf_private_names.py watches them):
`TFOptimizer._all_reduce_sum_gradients`, `Optimizer._iterations`, `_trainable_variables` and
`_model_variables_moving_average`, and `gradient_accumulation_steps` as an instance attribute.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.keras3.optimizer_view import innermost, optimizer_view
from keras_tpu_ext._runtime.tensorflow.replicas import assign_replicated, cross_replica_cond


def _already_summed(self: Any, grads_and_vars: Any) -> Any:
    return grads_and_vars


_MEMBERS = (
    ("_all_reduce_sum_gradients", _already_summed),
    # A condition that updates variables must stand outside the replicas: `apply_summed` has it.
    ("ema_overwrite_frequency", property(lambda self: None)),
)


def without_all_reduce(optimizer: Any) -> Any:
    """Return a second face of `optimizer` that takes gradients which are already summed over replicas.

    Keras's optimizers sum over replicas inside `apply`, and accumulate in a way that cannot run under
    MirroredStrategy. This ends when Keras lets `apply` be told that its gradients are reduced, as Keras 2 does
    (`skip_gradients_aggregation`).
    """
    return optimizer_view(optimizer, _MEMBERS)


def apply_summed(optimizer: Any, gradients: Any, variables: Any) -> None:
    """Let `optimizer` clip and apply gradients that are already summed over replicas; call it in a replica."""
    face = without_all_reduce(optimizer)
    inner = innermost(face)
    others = (inner.__dict__.get("gradient_accumulation_steps") or 1) - 1
    if others:  # an optimizer set to accumulate counts batches, and its learning rate schedule goes by them
        inner._iterations.assign_add(others)
        before = tf.convert_to_tensor(inner._iterations)
    face.apply_gradients(zip(gradients, variables, strict=True))
    if others:  # loss scaling may have skipped the step, and then it does not count at all
        stayed = tf.equal(tf.convert_to_tensor(inner._iterations), before)
        inner._iterations.assign_sub(tf.where(stayed, tf.cast(others, before.dtype), tf.zeros_like(before)))
    _overwrite_with_averages(inner)


def _overwrite_with_averages(face: Any) -> None:
    """Let the variables take their moving averages where the optimizer's `ema_overwrite_frequency` says so."""
    every = face.__dict__.get("ema_overwrite_frequency")
    if not (face.use_ema and every):
        return

    def overwrite() -> None:
        for variable, average in zip(face._trainable_variables, face._model_variables_moving_average, strict=True):
            if average is not None:
                assign_replicated(variable, tf.convert_to_tensor(average))

    cross_replica_cond(tf.equal(tf.convert_to_tensor(face.iterations) % every, 0), overwrite, lambda: None)
