"""Optimizers of TensorFlow Addons 0.23 that look at a variable as a whole, on Keras 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tpu_ext.dropin.stand_ins.addons_optimizers import Moments
from keras_tpu_ext.dropin.stand_ins.addons_weight_decay import is_matched


@keras.saving.register_keras_serializable(package="Addons")
class LAMB(Moments):
    """Adam for large batches: the step of a variable is as long as the variable.

    Args:
        learning_rate: A number or a schedule.
        beta_1: How much stays of the first moment in a step.
        beta_2: How much stays of the second moment in a step.
        epsilon: Added to the divisor.
        weight_decay: Times the learning rate and the variable's length, the part of it that goes.
        exclude_from_weight_decay: Patterns; variables with one of them in their names do not decay.
        exclude_from_layer_adaptation: Patterns; steps of these have Adam's length. The same by default.
        name: A name.
        kwargs: `lr`, `decay`, `clipnorm`, `clipvalue` and what Keras's optimizers take.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: Any = 0.0,
        exclude_from_weight_decay: list[str] | None = None,
        exclude_from_layer_adaptation: list[str] | None = None,
        name: str = "LAMB",
        **kwargs: Any,
    ) -> None:
        weight_decay = kwargs.pop("weight_decay_rate", weight_decay)
        super().__init__(learning_rate, beta_1, beta_2, epsilon, weight_decay=weight_decay, name=name, **kwargs)
        self._excluded = exclude_from_weight_decay
        self._not_adapted = exclude_from_layer_adaptation or exclude_from_weight_decay

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable."""
        gradient, step = ops.cast(gradient, variable.dtype), self.step_number(variable.dtype)
        m = self.first_moment_of(gradient, variable) / (1 - ops.power(self.beta_1, step))
        v = self.second_moment_of(ops.square(gradient), variable) / (1 - ops.power(self.beta_2, step))
        update = m / (ops.sqrt(v) + self.epsilon)
        if not is_matched(variable, self._excluded):
            update = update + self.decay_rate(variable.dtype) * variable
        if not is_matched(variable, self._not_adapted):
            update = _ratio(variable, update) * update
        variable.assign(variable - ops.cast(learning_rate, variable.dtype) * update)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        own = {"exclude_from_weight_decay": self._excluded, "exclude_from_layer_adaptation": self._not_adapted}
        return {**super().get_config(), **own}


def _ratio(variable: Any, update: Any) -> Any:
    """Return how much longer a variable is than its update; 1 if one of them is zero."""
    length, step = (ops.sqrt(ops.sum(ops.square(value))) for value in (variable, update))
    known = ops.logical_and(length > 0, step > 0)
    return ops.where(known, length / ops.where(known, step, 1), 1)


@keras.saving.register_keras_serializable(package="Addons")
class NovoGrad(Moments):
    """Momentum of gradients that are divided by the length of the variable's gradients.

    Args:
        learning_rate: A number or a schedule.
        beta_1: The momentum.
        beta_2: How much stays of the square of the length in a step.
        epsilon: Added to the divisor.
        weight_decay: How much of a weight is added to its gradient.
        grad_averaging: Whether gradients are multiplied by 1 - beta_1.
        amsgrad: Whether the largest length counts.
        name: A name.
        kwargs: `lr`, `decay`, `clipnorm`, `clipvalue` and what Keras's optimizers take.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        weight_decay: float = 0.0,
        grad_averaging: bool = False,
        amsgrad: bool = False,
        name: str = "NovoGrad",
        **kwargs: Any,
    ) -> None:
        if weight_decay < 0.0:
            raise ValueError("Weight decay rate cannot be negative")
        super().__init__(
            learning_rate, beta_1, beta_2, epsilon, weight_decay=weight_decay, amsgrad=amsgrad, name=name, **kwargs
        )
        self.grad_averaging = grad_averaging

    def build(self, variables: Sequence[Any]) -> None:
        """Make the variables."""
        if self.built:
            return
        super(Moments, self).build(variables)
        self._first = self.add_optimizer_variables(variables, "m")
        self._second = [self.add_variable((), dtype=v.dtype, name=f"{v.name}_v") for v in variables]
        # TensorFlow Addons has one of the variable's shape here, of which all numbers are equal.
        self._largest = [self.add_variable((), dtype=v.dtype, name=f"{v.name}_vhat") for v in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable."""
        gradient = ops.cast(gradient, variable.dtype)
        is_first = ops.equal(self.iterations, 0)
        square = ops.sum(ops.square(gradient))
        v = self.beta_2 * self.of(self._second, variable) + (1 - self.beta_2) * square
        v = self.largest_of(self.set_slot(self._second, variable, ops.where(is_first, square, v)), variable)
        gradient = gradient / (ops.sqrt(v) + self.epsilon) + self.decay_rate(variable.dtype) * variable
        if self.grad_averaging:
            gradient = ops.where(is_first, gradient, gradient * (1 - self.beta_1))
        step = ops.cast(learning_rate, variable.dtype) * gradient
        variable.assign(
            variable + self.set_slot(self._first, variable, self.beta_1 * self.of(self._first, variable) - step)
        )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "grad_averaging": self.grad_averaging}
