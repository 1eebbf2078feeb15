"""Optimizers of TensorFlow Addons 0.23 around another optimizer: they look ahead, or average the weights."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tpu_ext.dropin.stand_ins.addons_weight_decay import Addon


class _Around(Addon, keras.optimizers.Optimizer):
    """An optimizer around another one, whose step comes first.

    As in TensorFlow Addons, what is inside has its learning rate and its weight decay, but neither its clipping nor
    its list of variables that do not decay.
    """

    def __init__(self, optimizer: Any, name: str, **kwargs: Any) -> None:
        super().__init__(0.0, name=name, **kwargs)
        self._optimizer = keras.optimizers.get(optimizer)
        self._optimizer._iterations = self._iterations  # one count for both

    def build(self, variables: Sequence[Any]) -> None:
        if self.built:
            return
        self._optimizer.build(variables)
        super().build(variables)
        self._slots = self.add_optimizer_variables(variables, self._slot)

    _slot = "average"

    @property
    def variables(self) -> list[Any]:
        """The variables of both optimizers, each once: they have one count of steps."""
        return list({id(variable): variable for variable in [*self._variables, *self._optimizer.variables]}.values())

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """The weights are decayed in `update_step`."""

    def decay(self, variable: Any) -> None:
        """Decay a variable, as the optimizer inside does."""
        if hasattr(self._optimizer, "decay"):
            self._optimizer.decay(variable)
        else:
            self._optimizer._apply_weight_decay([variable])

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        del learning_rate  # this is ours, and without a meaning
        slot, before = self.of(self._slots, variable), variable.value
        if not isinstance(self._optimizer, _Around):
            self.decay(variable)
        self._optimizer.update_step(gradient, variable, self._optimizer.learning_rate)
        self._after_step(variable, slot, before)

    def _after_step(self, variable: Any, slot: Any, before: Any) -> None:
        raise NotImplementedError

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the optimizer inside."""
        return self._optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self._optimizer.learning_rate = learning_rate

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["learning_rate"]
        return {**config, "optimizer": keras.optimizers.serialize(self._optimizer)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        config = dict(config)
        optimizer = keras.optimizers.deserialize(config.pop("optimizer"), custom_objects=custom_objects)
        return cls(optimizer, **config)


@keras.saving.register_keras_serializable(package="Addons")
class Lookahead(_Around):
    """Every `sync_period` steps the weights go back towards what they were, by 1 - `slow_step_size`.

    Args:
        optimizer: The optimizer inside.
        sync_period: A number of steps.
        slow_step_size: Between 0, all the way back, and 1.
        name: A name.
        kwargs: What Keras's optimizers take.
    """

    _slot = "slow"

    def __init__(
        self,
        optimizer: Any,
        sync_period: int = 6,
        slow_step_size: float = 0.5,
        name: str = "Lookahead",
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer, name, **kwargs)
        self.sync_period, self.slow_step_size = int(sync_period), float(slow_step_size)

    def _after_step(self, variable: Any, slot: Any, before: Any) -> None:
        slow = ops.where(ops.equal(self.iterations, 0), before, slot.value)
        is_time = ops.equal((self.iterations + 1) % self.sync_period, 0)
        back = slow + self.slow_step_size * (variable - slow)
        slot.assign(ops.where(is_time, back, slow))
        variable.assign(ops.where(is_time, back, variable.value))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "sync_period": self.sync_period, "slow_step_size": self.slow_step_size}


class AveragedOptimizerWrapper(_Around):
    """An optimizer that keeps an average of the weights."""

    def assign_average_vars(self, var_list: Sequence[Any]) -> None:
        """Give variables their averages."""
        for variable in var_list:
            if self.built and self._var_key(variable) in self._trainable_variables_indices:
                variable.assign(ops.copy(self.of(self._slots, variable)))  # a step may not have a buffer twice
            else:
                warnings.warn(f"Unable to assign average slot to {variable.path}: there is none", stacklevel=2)


@keras.saving.register_keras_serializable(package="Addons")
class SWA(AveragedOptimizerWrapper):
    """Averages the weights of every `average_period`th step.

    Args:
        optimizer: The optimizer inside.
        start_averaging: The first step that counts.
        average_period: A number of steps.
        name: A name.
        kwargs: What Keras's optimizers take.
    """

    def __init__(
        self, optimizer: Any, start_averaging: int = 0, average_period: int = 10, name: str = "SWA", **kwargs: Any
    ) -> None:
        if average_period < 1:
            raise ValueError("average_period must be >= 1")
        if start_averaging < 0:
            raise ValueError("start_averaging must be >= 0")
        super().__init__(optimizer, name, **kwargs)
        self.start_averaging, self.average_period = start_averaging, average_period

    def _after_step(self, variable: Any, slot: Any, before: Any) -> None:
        del before
        since = self.iterations - self.start_averaging
        count = ops.cast(since // self.average_period, variable.dtype)
        is_time = ops.logical_and(since >= 0, ops.equal(since % self.average_period, 0))
        slot.assign(ops.where(is_time, (slot * count + variable) / ops.where(is_time, count + 1, 1), slot.value))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        own = {"start_averaging": self.start_averaging, "average_period": self.average_period}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="Addons")
class MovingAverage(AveragedOptimizerWrapper):
    """Keeps a moving average of the weights.

    Args:
        optimizer: The optimizer inside.
        average_decay: How much stays of the average in a step.
        num_updates: If given, `average_decay` is at most (1 + num_updates) / (10 + num_updates).
        start_step: The first step that counts.
        dynamic_decay: Whether `average_decay` is less in the first steps.
        name: A name.
        kwargs: What Keras's optimizers take.
    """

    def __init__(
        self,
        optimizer: Any,
        average_decay: float = 0.99,
        num_updates: int | None = None,
        start_step: int = 0,
        dynamic_decay: bool = False,
        name: str = "MovingAverage",
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer, name, **kwargs)
        if num_updates is not None:
            average_decay = min(average_decay, (1 + int(num_updates)) / (10 + int(num_updates)))
        self.average_decay, self.start_step = float(average_decay), start_step
        self.dynamic_decay = dynamic_decay

    def _after_step(self, variable: Any, slot: Any, before: Any) -> None:
        average = ops.where(ops.equal(self.iterations, 0), before, slot.value)
        slot.assign(average - (average - variable) * (1 - self._staying(variable.dtype)))

    def _staying(self, dtype: Any) -> Any:
        since = ops.cast(self.iterations - self.start_step, dtype)
        decay = (
            ops.minimum(self.average_decay, (1 + since) / (10 + since)) if self.dynamic_decay else self.average_decay
        )
        return ops.where(since < 0, 0.0, decay)

    def shadow_copy(self, model_weights: Sequence[Any]) -> None:
        """Make the averages of variables, before the first step."""
        self.build(list(model_weights))

    @property
    def has_shadow_copy(self) -> bool:
        """Whether there are averages."""
        return bool(self.built)

    def swap_weights(self) -> None:
        """Exchange the weights and their averages."""
        for variable in self._trainable_variables:
            slot = self.of(self._slots, variable)
            value, average = ops.copy(variable), ops.copy(slot)
            variable.assign(average)
            slot.assign(value)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        names = ("average_decay", "start_step", "dynamic_decay")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
