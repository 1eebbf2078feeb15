"""What a step does inside, for a check to look at: the gradients that reach the update, and the loss scale (Keras 2).

Private names that this module leans on (tests/_runtime/test_keras2_private_names.py watches Keras's): of Keras's
optimizers `_build_learning_rate`, `_index_dict`, `_var_key` and `_built`; of `TPUModel`, if the model is one,
`_step_state`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.compat.keras2 import keras
from keras_tpu_ext._runtime.keras2 import optimizer as optimizers
from keras_tpu_ext._runtime.keras2.flops import count_flops as count_flops
from keras_tpu_ext._runtime.keras2.lowering import lower_step as lower_step
from keras_tpu_ext._runtime.tensorflow.executions import intercept_executions as intercept_executions
from keras_tpu_ext._runtime.training.overflow import unwatch_overflow as unwatch_overflow
from keras_tpu_ext._runtime.training.overflow import watch_overflow as watch_overflow

_SETTINGS = ("clipnorm", "clipvalue", "global_clipnorm")


class GradientRecorder(keras.optimizers.Optimizer):
    """An optimizer that keeps the last gradient of each variable and changes no variable.

    Args:
        **settings: What `keras.optimizers.Optimizer` takes to clip.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(name="gradient_recorder", **settings)
        self._learning_rate = self._build_learning_rate(1.0)
        self.recorded: list[Any] = []

    def build(self, var_list: Any) -> None:
        """Make a slot for the gradient of each variable."""
        super().build(var_list)
        if not self.recorded:
            self.recorded = [self.add_variable_from_reference(variable, "recorded") for variable in var_list]

    def update_step(self, gradient: Any, variable: Any) -> None:
        """Keep `gradient`; where it comes in slices, those of one row add up."""
        recorded = self.recorded[self._index_dict[self._var_key(variable)]]
        recorded.assign(tf.zeros_like(recorded))
        if isinstance(gradient, tf.IndexedSlices):
            recorded.scatter_add(gradient)
        else:
            recorded.assign_add(tf.cast(gradient, recorded.dtype))


def record_gradients(model: Any) -> Callable[[], list[Any] | None]:
    """Put an optimizer that only records in the place of a compiled model's own, with the same clipping.

    Call it inside the model's scope and before the model has taken a step.

    Returns:
        A function that returns the last gradients, reduced over replicas, unscaled and clipped, as arrays in the
        order of the trainable variables; `None` where no gradient has reached the optimizer.
    """
    own = model.optimizer
    inner = getattr(own, "inner_optimizer", own)
    recorder = GradientRecorder(**{name: getattr(inner, name, None) for name in _SETTINGS})
    model.optimizer = recorder
    if optimizers.scales(own):
        model.optimizer = keras.mixed_precision.LossScaleOptimizer(
            recorder, own.dynamic, own.initial_scale, own.dynamic_growth_steps
        )

    def recorded() -> list[Any] | None:
        if not recorder.recorded or not int(recorder.iterations.numpy()):
            return None
        return [value.numpy() for value in recorder.recorded]

    return recorded
