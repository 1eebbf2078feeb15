"""What a step remembers besides weights and optimizer: the loss scale and the accumulation window.

Each is a Keras layer, because Keras saves the variables of layers that it finds on a model; they are no layers
of the model, which has the weights that the user gave it and no others.
"""

from __future__ import annotations

from typing import Any

from keras_tpu_ext._runtime.compat import keras, new_variable, ops


class StepState(keras.layers.Layer):
    """The loss scale and the accumulation windows of one compiled model.

    Args:
        loss_scale: A `LossScale`, or `None` where the loss is not scaled.
        accumulation_steps: Number of batches that make one step.
    """

    def __init__(self, loss_scale: Any, accumulation_steps: int) -> None:
        super().__init__(name="step_state", dtype="float32")
        self.loss_scale = loss_scale
        self.accumulation_steps = accumulation_steps
        self._windows: dict[int, Any] = {}
        self.watch: Any = None
        self.built = True
        if loss_scale is not None:
            self.scale = new_variable(loss_scale.initial, "float32", "scale")
            self.good_steps = new_variable(0, "int32", "good_steps")
            self.skipped_steps = new_variable(0, "int32", "skipped_steps")

    def window(self, optimizer: Any) -> Any:
        """Return the window of `optimizer`; `None` where every batch is a step."""
        if self.accumulation_steps == 1 or optimizer is None:
            return None
        if id(optimizer) not in self._windows:
            self._windows[id(optimizer)] = self._make_window(optimizer)
        return self._windows[id(optimizer)]

    def optimizers_with_open_windows(self) -> list[Any]:
        """Return the optimizers whose windows have some of their batches, but not all."""
        windows = self._windows.values()
        return [
            window.optimizer() for window in windows if window.targets and int(ops.convert_to_numpy(window.position))
        ]

    def note(self, finite: Any) -> None:
        """Let the scale go on after a step; call it in the step."""
        scale, good_steps, skipped = (
            ops.convert_to_tensor(variable) for variable in (self.scale, self.good_steps, self.skipped_steps)
        )
        scale, good_steps = self.loss_scale.after(scale, good_steps, finite, ops.where)
        self._assign(self.scale, scale)
        self._assign(self.good_steps, good_steps)
        self._assign(self.skipped_steps, skipped + ops.cast(ops.logical_not(finite), "int32"))

    def _assign(self, variable: Any, value: Any) -> None:
        """Give every replica the same value."""
        raise NotImplementedError

    def _make_window(self, optimizer: Any) -> Any:
        """Return the accumulation window of `optimizer`, a layer with `targets`, `position` and `optimizer`."""
        raise NotImplementedError
