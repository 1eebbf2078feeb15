"""A layer of old Keras that Keras 3 has no more."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_tpu_ext.dropin")
class ThresholdedReLU(keras.layers.Layer):
    """The input where it is more than `theta`, and zero elsewhere."""

    def __init__(self, theta: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if theta is None or theta < 0:
            raise ValueError(f"theta needs to be a number that is not negative; this is {theta!r}.")
        self.theta = float(theta)
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        """Return the activation."""
        return inputs * ops.cast(inputs > self.theta, inputs.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the input's shape."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "theta": self.theta}
