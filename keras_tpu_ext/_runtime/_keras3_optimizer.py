"""Applying gradients that are already summed over replicas with a stock Keras 3 optimizer.

Private names of Keras that this module leans on (tests/_runtime/test_private_names.py watches them):
`TFOptimizer._all_reduce_sum_gradients`, `Optimizer._iterations`, and `gradient_accumulation_steps` and
`LossScaleOptimizer.inner_optimizer` as instance attributes.
"""

from __future__ import annotations

import functools
from typing import Any

import keras
import tensorflow as tf

from keras_tpu_ext._runtime._tf_replicas import all_agree, assign_everywhere


def without_all_reduce(optimizer: Any) -> Any:
    """Return a second face of `optimizer` that takes gradients which are already summed over replicas.

    Keras's optimizers sum over replicas inside `apply`. The face shares every bit of state with the user's
    optimizer, which itself stays as it is; only that one method does nothing, and it does not accumulate. This
    ends when Keras lets `apply` be told that its gradients are reduced, as Keras 2 does
    (`skip_gradients_aggregation`).
    """
    optimizer_class: Any = type(optimizer)
    face: Any = object.__new__(_face_class(optimizer_class))
    object.__setattr__(face, "__dict__", optimizer.__dict__)
    return face


@functools.cache
def _face_class(optimizer_class: Any) -> Any:
    def already_summed(self: Any, grads_and_vars: Any) -> Any:
        return grads_and_vars

    def inner_optimizer(self: Any) -> Any:
        return without_all_reduce(self.__dict__["inner_optimizer"])

    def iterations(self: Any) -> Any:
        steps = self.__dict__["gradient_accumulation_steps"] or 1
        return self._iterations if steps == 1 else keras.ops.floor_divide(self._iterations, steps)

    members: dict[str, Any] = {
        "_all_reduce_sum_gradients": already_summed,
        # The model accumulates, before the sum over replicas; the optimizer's own way cannot run under
        # MirroredStrategy. Its counter goes on counting batches, so that `iterations` means what it meant.
        "gradient_accumulation_steps": property(lambda self: None),
        "iterations": property(iterations),
        # A condition that updates variables must stand outside the replicas: `apply_summed` has it.
        "ema_overwrite_frequency": property(lambda self: None),
    }
    if issubclass(optimizer_class, keras.optimizers.LossScaleOptimizer):
        members["inner_optimizer"] = property(inner_optimizer)
    return type(optimizer_class.__name__, (optimizer_class,), members)


def apply_summed(optimizer: Any, gradients: Any, variables: Any) -> None:
    """Let `optimizer` clip and apply gradients that are already summed over replicas; call it in a replica."""
    face = without_all_reduce(optimizer)
    inner = getattr(face, "inner_optimizer", face)
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
                assign_everywhere(variable, tf.convert_to_tensor(average))

    all_agree(tf.equal(tf.convert_to_tensor(face.iterations) % every, 0), overwrite, lambda: None)
