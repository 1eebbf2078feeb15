"""Probes of a train step that Keras 3 has on every backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras

from keras_tpu_ext._runtime.common.types import Array, Tensor

_CLIPPING_AND_SCALE = ("clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor")


class GradientRecorder(keras.optimizers.Optimizer):
    """An optimizer that records the last gradient of each variable, and updates no variable."""

    def __init__(self, **settings: float | None) -> None:
        super().__init__(learning_rate=1.0, name="gradient_recorder", **settings)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Create a slot for the gradient of each variable."""
        if self.built:
            return
        super().build(variables)
        self.recorded = [self.add_variable_from_reference(variable, name="recorded") for variable in variables]

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        """Record `gradient`; slices of the same row add up."""
        recorded = self.recorded[self._get_variable_index(variable)]
        self.assign(recorded, keras.ops.zeros(recorded.shape, recorded.dtype))
        self.assign_add(recorded, gradient)


def record_gradients(model: keras.Model) -> Callable[[], list[Array] | None]:
    """Replace the optimizer by a recorder with the same clipping; see `common/protocols.py`."""
    own = model.optimizer
    inner = getattr(own, "inner_optimizer", own)
    recorder = GradientRecorder(**{name: getattr(inner, name) for name in _CLIPPING_AND_SCALE})
    replacement = recorder
    if isinstance(own, keras.optimizers.LossScaleOptimizer):
        replacement = keras.optimizers.LossScaleOptimizer(
            recorder, initial_scale=own.initial_scale, dynamic_growth_steps=own.dynamic_growth_steps
        )
    model.optimizer = replacement

    def recorded() -> list[Array] | None:
        if not recorder.built or not int(keras.ops.convert_to_numpy(recorder.iterations)):
            return None
        return [keras.ops.convert_to_numpy(value) for value in recorder.recorded]

    return recorded
