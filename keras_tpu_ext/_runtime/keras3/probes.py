"""What a step does inside, for a check to look at: the gradients that reach the update, and the loss scale.

Private names that this module leans on (tests/_runtime/test_keras3_private_names.py watches Keras's): of Keras's
optimizers `_get_variable_index`; of `TPUModel`, if the model is one, `_step_state`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from keras_tpu_ext._runtime.training.step_state import step_state_of

_SETTINGS = ("clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor")


class GradientRecorder(keras.optimizers.Optimizer):
    """An optimizer that keeps the last gradient of each variable and changes no variable.

    Args:
        **settings: What `keras.optimizers.Optimizer` takes to clip and unscale.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(learning_rate=1.0, name="gradient_recorder", **settings)

    def build(self, variables: Any) -> None:
        """Make a slot for the gradient of each variable."""
        if self.built:
            return
        super().build(variables)
        self.recorded = [self.add_variable_from_reference(variable, name="recorded") for variable in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Keep `gradient`; where it comes in slices, those of one row add up."""
        recorded = self.recorded[self._get_variable_index(variable)]
        self.assign(recorded, keras.ops.zeros(recorded.shape, recorded.dtype))
        self.assign_add(recorded, gradient)


def record_gradients(model: Any) -> Callable[[], list[Any] | None]:
    """Put an optimizer that only records in the place of a compiled model's own, with the same clipping.

    Call it inside the model's scope and before the model has taken a step.

    Returns:
        A function that returns the last gradients, reduced over replicas, unscaled and clipped, as arrays in the
        order of the trainable variables; `None` where no gradient has reached the optimizer.
    """
    own = model.optimizer
    inner = getattr(own, "inner_optimizer", own)
    recorder = GradientRecorder(**{name: getattr(inner, name) for name in _SETTINGS})
    replacement = recorder
    if isinstance(own, keras.optimizers.LossScaleOptimizer):
        replacement = keras.optimizers.LossScaleOptimizer(
            recorder, initial_scale=own.initial_scale, dynamic_growth_steps=own.dynamic_growth_steps
        )
    model.optimizer = replacement

    def recorded() -> list[Any] | None:
        if not recorder.built or not int(_array(recorder.iterations)):
            return None
        return [_array(value) for value in recorder.recorded]

    return recorded


def loss_scale(model: Any) -> float | None:
    """Return what the loss of the next step is multiplied by; `None` where nothing scales it by rule."""
    state = step_state_of(model)
    if state is not None and state.loss_scaler:
        return float(_array(state.scale))
    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) and model.optimizer.built:
        return float(_array(model.optimizer.dynamic_scale))
    return None


def _array(variable: Any) -> Any:
    return keras.ops.convert_to_numpy(variable)
