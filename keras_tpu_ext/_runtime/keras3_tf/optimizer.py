"""Apply gradients that are already summed over replicas with any optimizer of Keras 3."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Optimizer, Variable
from keras_tpu_ext._runtime.compat.keras3_tensorflow import count_step
from keras_tpu_ext._runtime.tensorflow.replicas import assign_replicated, cross_replica_cond


def apply_summed(optimizer: Optimizer, gradients: Sequence[tf.Tensor], variables: Sequence[Variable]) -> None:
    """Let `optimizer` clip and apply gradients that are already summed over replicas."""
    view = without_all_reduce(optimizer)
    view.apply_gradients(zip(gradients, variables, strict=True))
    _overwrite_with_averages(view)


def _accumulate_or_apply(
    view: keras.Optimizer, gradients: Sequence[tf.Tensor], variables: Sequence[Variable]
) -> None:
    """Do what Keras's own method does; its condition is inside the replicas, where MirroredStrategy fails."""
    steps = view.gradient_accumulation_steps
    if not steps:
        super(type(view), view)._backend_apply_gradients(gradients, variables)
        return
    sums = [view._accumulated_gradients[view._get_variable_index(variable)] for variable in variables]

    def apply(*gradients: tf.Tensor) -> None:
        means = [(total + gradient) / steps for total, gradient in zip(sums, gradients, strict=True)]
        means = view._clip_gradients(means)
        view._apply_weight_decay(variables)
        view._backend_update_step(means, variables, view.learning_rate)
        for total in sums:
            assign_replicated(total, tf.zeros(total.shape, total.dtype))

    def add(*gradients: tf.Tensor) -> None:
        for total, gradient in zip(sums, gradients, strict=True):
            assign_replicated(total, total + gradient)

    is_last = tf.equal((tf.convert_to_tensor(view._iterations) + 1) % steps, 0)
    cross_replica_cond(is_last, apply, add, *gradients)
    if view.use_ema:
        view._update_model_variables_moving_average(view._trainable_variables)
    count_step(view)


_VIEW_MEMBERS = {
    "_all_reduce_sum_gradients": lambda self, grads_and_vars: grads_and_vars,
    "_backend_apply_gradients": _accumulate_or_apply,
    # A condition that updates variables must be outside the replicas; see `_overwrite_with_averages`.
    "ema_overwrite_frequency": property(lambda self: None),
}


def without_all_reduce(optimizer: Optimizer) -> Optimizer:
    """Return a view of `optimizer`, with its state, that does not sum gradients over replicas inside `apply`."""
    # It can go when `apply` has an argument for this, as in Keras 2 (`skip_gradients_aggregation`).
    optimizer_class: Any = type(optimizer)
    view = object.__new__(_view_class(optimizer_class))
    object.__setattr__(view, "__dict__", optimizer.__dict__)
    return view


@functools.cache
def _view_class(optimizer_class: Any) -> Any:
    for name in (name for name in _VIEW_MEMBERS if name.startswith("_")):
        getattr(optimizer_class, name)  # if one is gone, Keras would not call ours
    members: dict[str, Any] = dict(_VIEW_MEMBERS)
    if issubclass(optimizer_class, keras.optimizers.LossScaleOptimizer):
        members["inner_optimizer"] = property(lambda self: without_all_reduce(self.__dict__["inner_optimizer"]))
    return type(optimizer_class.__name__, (optimizer_class,), members)


def _overwrite_with_averages(view: Any) -> None:
    """Overwrite the variables with their moving averages when the optimizer's `ema_overwrite_frequency` says so."""
    view = getattr(view, "inner_optimizer", view)
    every = view.__dict__.get("ema_overwrite_frequency")
    if not (view.use_ema and every):
        return

    def overwrite() -> None:
        for variable, average in zip(view._trainable_variables, view._model_variables_moving_average, strict=True):
            if average is not None:
                assign_replicated(variable, tf.convert_to_tensor(average))

    steps = (tf.convert_to_tensor(view._iterations) - 1) // (view.gradient_accumulation_steps or 1) + 1
    cross_replica_cond(tf.equal(steps % every, 0), overwrite, lambda: None)
