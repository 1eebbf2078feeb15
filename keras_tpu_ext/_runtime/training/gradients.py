"""Records of the gradients that an optimizer would apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras_tpu_ext._runtime.common.types import Array, Model, Tensor, Variable
from keras_tpu_ext._runtime.compat import LossScaleOptimizer, keras, ops, record_gradient, scaling_as

_SETTINGS = ("clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor")


class GradientRecorder(keras.optimizers.SGD):
    """An optimizer that records the last gradient of each variable as its momentum, and updates no variable."""

    def update_step(self: Any, gradient: Tensor, variable: Variable, *learning_rate: Tensor) -> None:
        """Record `gradient`; slices of the same row add up."""
        record_gradient(self, gradient, variable)


def record_gradients(model: Model) -> Callable[[], list[Array] | None]:
    """Replace the optimizer of a compiled model, before its first step, by one that only records gradients.

    The result is a function that returns the last ones, reduced, unscaled and clipped as before, as arrays in the
    order of the trainable variables; `None` if there are none yet.
    """
    own = model.optimizer
    inner = getattr(own, "inner_optimizer", own)
    settings = {name: getattr(inner, name) for name in _SETTINGS if hasattr(inner, name)}
    recorder: Any = GradientRecorder(1.0, momentum=0.5, name="gradient_recorder", **settings)
    model.optimizer = scaling_as(own, recorder) if isinstance(own, LossScaleOptimizer) else recorder

    def recorded() -> list[Array] | None:
        if not int(ops.convert_to_numpy(recorder.iterations)):
            return None
        return [ops.convert_to_numpy(value) for value in recorder.momentums]

    return recorded
