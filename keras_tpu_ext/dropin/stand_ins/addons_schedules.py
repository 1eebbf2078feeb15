"""Learning rates of TensorFlow Addons 0.23 that go up and down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="Addons")
class CyclicalLearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that goes up for `step_size` steps, and down for as many, again and again.

    Args:
        initial_learning_rate: The lowest.
        maximal_learning_rate: The highest.
        step_size: A number of steps.
        scale_fn: A factor for the height, of the cycle or the step.
        scale_mode: "cycle" or "iterations": what `scale_fn` is called with.
        name: Without effect.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        maximal_learning_rate: float,
        step_size: float,
        scale_fn: Callable[[Any], Any],
        scale_mode: str = "cycle",
        name: str = "CyclicalLearningRate",
    ) -> None:
        super().__init__()
        self.initial_learning_rate, self.maximal_learning_rate = initial_learning_rate, maximal_learning_rate
        self.step_size, self.scale_fn, self.scale_mode, self.name = step_size, scale_fn, scale_mode, name

    def __call__(self, step: Any) -> Any:
        """Return the learning rate of a step."""
        position = ops.cast(step, "float32")
        cycle = ops.floor(1 + position / (2 * self.step_size))
        height = ops.maximum(0, 1 - ops.abs(position / self.step_size - 2 * cycle + 1))
        scale = self.scale_fn(cycle if self.scale_mode == "cycle" else position)
        return self.initial_learning_rate + (self.maximal_learning_rate - self.initial_learning_rate) * height * scale

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        names = ("initial_learning_rate", "maximal_learning_rate", "step_size", "scale_mode")
        own = {name: getattr(self, name) for name in names}
        return own if type(self) is not CyclicalLearningRate else {**own, "scale_fn": self.scale_fn}


@keras.saving.register_keras_serializable(package="Addons")
class TriangularCyclicalLearningRate(CyclicalLearningRate):
    """All cycles have the same height."""

    def __init__(
        self,
        initial_learning_rate: float,
        maximal_learning_rate: float,
        step_size: float,
        scale_mode: str = "cycle",
        name: str = "TriangularCyclicalLearningRate",
    ) -> None:
        super().__init__(initial_learning_rate, maximal_learning_rate, step_size, lambda x: 1.0, scale_mode, name)


@keras.saving.register_keras_serializable(package="Addons")
class Triangular2CyclicalLearningRate(CyclicalLearningRate):
    """Each cycle has half the height of the one before."""

    def __init__(
        self,
        initial_learning_rate: float,
        maximal_learning_rate: float,
        step_size: float,
        scale_mode: str = "cycle",
        name: str = "Triangular2CyclicalLearningRate",
    ) -> None:
        halved: Callable[[Any], Any] = lambda x: 1 / (2.0 ** (x - 1))  # noqa: E731, a line says it
        super().__init__(initial_learning_rate, maximal_learning_rate, step_size, halved, scale_mode, name)


@keras.saving.register_keras_serializable(package="Addons")
class ExponentialCyclicalLearningRate(CyclicalLearningRate):
    """The height falls by the factor `gamma` in each step, or cycle."""

    def __init__(
        self,
        initial_learning_rate: float,
        maximal_learning_rate: float,
        step_size: float,
        scale_mode: str = "iterations",
        gamma: float = 1.0,
        name: str = "ExponentialCyclicalLearningRate",
    ) -> None:
        self.gamma = gamma
        super().__init__(
            initial_learning_rate, maximal_learning_rate, step_size, lambda x: gamma**x, scale_mode, name
        )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "gamma": self.gamma}
