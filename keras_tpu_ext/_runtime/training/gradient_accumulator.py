"""What an accumulation window is on every framework; its variables are the framework's own affair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras_tpu_ext._runtime.compat import keras


class GradientAccumulator(keras.layers.Layer):
    """Sums of gradients over several batches.

    Args:
        steps: Number of batches in a full window.
        optimizer: Returns the optimizer that takes the step. Keras would save an optimizer that it finds here.
    """

    def __init__(self, steps: int, optimizer: Callable[[], Any]) -> None:
        super().__init__(name="window", dtype="float32")
        self.steps = steps
        self.optimizer = optimizer
        self.targets: list[Any] = []
        self.built = True
