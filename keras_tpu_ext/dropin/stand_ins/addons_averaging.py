"""Optimizers of TensorFlow Addons 0.23 around another optimizer: they look ahead, or average the weights."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tpu_ext.dropin import report

_register = keras.saving.register_keras_serializable(package="Addons")


class _Around(keras.optimizers.Optimizer):
    """An optimizer around another one, whose step comes first.

    As in TensorFlow Addons, what is inside has its learning rate and its weight decay, but neither its clipping nor
    its list of variables that do not decay.
    """

    _own: tuple[str, ...] = ()  # arguments of the class
    _slot = "average"

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

    @property
    def variables(self) -> list[Any]:
        """The variables of both optimizers, each once: they have one count of steps."""
        return list({id(variable): variable for variable in [*self._variables, *self._optimizer.variables]}.values())

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """The weights are decayed in `update_step`."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        del learning_rate  # this is ours, and without a meaning
        slot, before = self._slots[self._get_variable_index(variable)], variable.value
        if hasattr(self._optimizer, "decay"):
            self._optimizer.decay(variable)
        else:
            self._optimizer._apply_weight_decay([variable])
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
        config = {**super().get_config(), **{name: getattr(self, name) for name in self._own}}
        del config["learning_rate"]
        return {**config, "optimizer": keras.optimizers.serialize(self._optimizer)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        optimizer = keras.optimizers.deserialize(config["optimizer"], custom_objects=custom_objects)
        return cls(**{**config, "optimizer": optimizer})


@_register
class Lookahead(_Around):
    """Every `sync_period` steps weights go back towards what they were, by 1 - `slow_step_size`, as in Addons."""

    _own = ("sync_period", "slow_step_size")
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

    def build(self, variables: Sequence[Any]) -> None:
        """Make the variables."""
        if any(variable.name == "g" for variable in variables):
            report.told("Lookahead on WeightNormalization", "`g` goes back to its first value; in Addons, to 1")
        super().build(variables)

    def _after_step(self, variable: Any, slot: Any, before: Any) -> None:
        slow = ops.where(ops.equal(self.iterations, 0), before, slot.value)
        is_time = ops.equal((self.iterations + 1) % self.sync_period, 0)
        back = slow + self.slow_step_size * (variable - slow)
        slot.assign(ops.where(is_time, back, slow))
        variable.assign(ops.where(is_time, back, variable.value))


@_register
class SWA(_Around):
    """Averages the weights of every `average_period`th step from `start_averaging` on, as in Addons."""

    _own = ("start_averaging", "average_period")

    def __init__(
        self, optimizer: Any, start_averaging: int = 0, average_period: int = 10, name: str = "SWA", **kwargs: Any
    ) -> None:
        if average_period < 1 or start_averaging < 0:
            raise ValueError(
                f"SWA needs average_period > 0 and start_averaging >= 0; {average_period} and {start_averaging} came."
            )
        super().__init__(optimizer, name, **kwargs)
        self.start_averaging, self.average_period = start_averaging, average_period

    def _after_step(self, variable: Any, slot: Any, before: Any) -> None:
        del before
        since = self.iterations - self.start_averaging
        count = ops.cast(since // self.average_period, variable.dtype)
        is_time = ops.logical_and(since >= 0, ops.equal(since % self.average_period, 0))
        slot.assign(ops.where(is_time, (slot * count + variable) / ops.where(is_time, count + 1, 1), slot.value))

    def assign_average_vars(self, var_list: Sequence[Any]) -> None:
        """Give variables their averages."""
        for variable in var_list:
            if self.built and self._var_key(variable) in self._trainable_variables_indices:
                slot = self._slots[self._get_variable_index(variable)]
                variable.assign(ops.copy(slot))  # a step may not have a buffer twice
            else:
                warnings.warn(f"Unable to assign average slot to {variable.path}: there is none", stacklevel=2)
