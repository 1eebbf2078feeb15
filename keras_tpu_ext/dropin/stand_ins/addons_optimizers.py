"""Optimizers of TensorFlow Addons 0.23: their mathematics for a dense gradient, on Keras 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tpu_ext.dropin.stand_ins.addons_weight_decay import Addon, hyperparameter, is_matched


class _Moments(Addon, keras.optimizers.Optimizer):
    """An optimizer with the moments of Adam, and perhaps the largest of the second ones."""

    def __init__(self, learning_rate: Any, beta_1: float, beta_2: float, epsilon: float, **kwargs: Any) -> None:
        amsgrad = kwargs.pop("amsgrad", False)
        super().__init__(learning_rate, **kwargs)
        self.amsgrad = amsgrad
        self.beta_1, self.beta_2 = float(beta_1), float(beta_2)
        self.epsilon = epsilon or keras.backend.epsilon()

    def build(self, variables: Sequence[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        self._first, self._second = self.add_optimizer_variables(variables, ["m", "v"])
        if self.amsgrad:
            self._largest = self.add_optimizer_variables(variables, "vhat")

    def _set(self, slots: Sequence[Any], variable: Any, value: Any) -> Any:
        self.of(slots, variable).assign(value)
        return value

    def _first_moment(self, gradient: Any, variable: Any) -> Any:
        m = self.of(self._first, variable)
        return self._set(self._first, variable, self.beta_1 * m + (1 - self.beta_1) * gradient)

    def _second_moment(self, square: Any, variable: Any, added: float = 0.0) -> Any:
        v = self.of(self._second, variable)
        v = self._set(self._second, variable, self.beta_2 * v + (1 - self.beta_2) * square + added)
        return self._largest_of(v, variable)

    def _largest_of(self, v: Any, variable: Any) -> Any:
        if not self.amsgrad:
            return v
        return self._set(self._largest, variable, ops.maximum(self.of(self._largest, variable), v))

    def _step(self, dtype: Any) -> Any:
        return ops.cast(self.iterations + 1, dtype)

    def get_config(self) -> dict[str, Any]:
        own = {"beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}
        return {**super().get_config(), **own, **({"amsgrad": True} if self.amsgrad else {})}


@keras.saving.register_keras_serializable(package="Addons")
class RectifiedAdam(_Moments):
    """Adam whose first steps are of gradient descent, until the variance of the second moment is known.

    Args:
        learning_rate: A number or a schedule.
        beta_1: How much stays of the first moment in a step.
        beta_2: How much stays of the second moment in a step.
        epsilon: Added to the divisor.
        weight_decay: A number or a schedule; times the learning rate, the part of a weight that goes in each step.
        amsgrad: Whether the largest second moment counts.
        sma_threshold: From which length of the average on steps are Adam's.
        total_steps: If not 0, the learning rate grows for `warmup_proportion` of them and falls to `min_lr`.
        warmup_proportion: See `total_steps`.
        min_lr: See `total_steps`.
        name: A name.
        kwargs: `lr`, `decay`, `clipnorm`, `clipvalue` and what Keras's optimizers take.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        weight_decay: Any = 0.0,
        amsgrad: bool = False,
        sma_threshold: float = 5.0,
        total_steps: int = 0,
        warmup_proportion: float = 0.1,
        min_lr: float = 0.0,
        name: str = "RectifiedAdam",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate, beta_1, beta_2, epsilon, weight_decay=weight_decay, amsgrad=amsgrad, name=name, **kwargs
        )
        self.sma_threshold, self.total_steps = float(sma_threshold), total_steps
        self.warmup_proportion, self.min_lr = float(warmup_proportion), float(min_lr)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable."""
        gradient, step = ops.cast(gradient, variable.dtype), self._step(variable.dtype)
        learning_rate = self._warmed_up(ops.cast(learning_rate, variable.dtype), step)
        m = self._first_moment(gradient, variable)
        v = self._second_moment(self._square(gradient, m), variable, self._added())
        update = self._rectified(m, v, step)
        if self._decay_rate != 0.0:
            update = update + self.decay_rate(variable.dtype) * variable
        variable.assign(variable - learning_rate * update)

    def _square(self, gradient: Any, first_moment: Any) -> Any:
        del first_moment
        return ops.square(gradient)

    def _added(self) -> float:
        return 0.0

    def _rectified(self, m: Any, v: Any, step: Any) -> Any:
        beta_2 = ops.cast(self.beta_2, step.dtype)  # in this order and precision, as much is cancelled
        beta_2_power = ops.power(beta_2, step)
        m = m / (1 - ops.power(self.beta_1, step))
        adam = m / (ops.sqrt(v / (1 - beta_2_power)) + self.epsilon)
        longest = 2 / (1 - beta_2) - 1
        length = longest - 2 * step * beta_2_power * (1 / (1 - beta_2_power))
        # Of a negative number where the length is short: gradient descent is chosen there.
        factor = (length - 4) / (longest - 4) * (length - 2) / (longest - 2) * longest / length
        return ops.where(length >= self.sma_threshold, ops.sqrt(ops.abs(factor)) * adam, m)

    def _warmed_up(self, learning_rate: Any, step: Any) -> Any:
        if not self.total_steps:
            return learning_rate
        warmup = self.total_steps * self.warmup_proportion
        rest = max(self.total_steps - warmup, 1)
        falling = (self.min_lr - learning_rate) / rest
        return ops.where(
            step <= warmup,
            learning_rate * (step / max(warmup, 1e-12)),
            learning_rate + falling * ops.minimum(step - warmup, rest),
        )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        names = ("sma_threshold", "total_steps", "warmup_proportion", "min_lr")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable(package="Addons")
class AdaBelief(RectifiedAdam):
    """Adam whose second moment is of what the first one did not expect; the arguments are `RectifiedAdam`'s."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-14,
        weight_decay: Any = 0.0,
        amsgrad: bool = False,
        rectify: bool = True,
        sma_threshold: float = 5.0,
        total_steps: int = 0,
        warmup_proportion: float = 0.1,
        min_lr: float = 0.0,
        name: str = "AdaBelief",
        **kwargs: Any,
    ) -> None:
        warmup = {"total_steps": total_steps, "warmup_proportion": warmup_proportion, "min_lr": min_lr}
        arguments: dict[str, Any] = {"sma_threshold": sma_threshold, **warmup, "name": name, **kwargs}
        super().__init__(learning_rate, beta_1, beta_2, epsilon, weight_decay, amsgrad, **arguments)
        self.rectify = rectify

    def _square(self, gradient: Any, first_moment: Any) -> Any:
        return ops.square(gradient - first_moment)

    def _added(self) -> float:
        return float(self.epsilon)

    def _rectified(self, m: Any, v: Any, step: Any) -> Any:
        if self.rectify:
            return super()._rectified(m, v, step)
        root = ops.sqrt(v / (1 - ops.power(self.beta_2, step)))
        return m / (1 - ops.power(self.beta_1, step)) / (root + self.epsilon)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "rectify": self.rectify}


@keras.saving.register_keras_serializable(package="Addons")
class LAMB(_Moments):
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
        gradient, step = ops.cast(gradient, variable.dtype), self._step(variable.dtype)
        m = self._first_moment(gradient, variable) / (1 - ops.power(self.beta_1, step))
        v = self._second_moment(ops.square(gradient), variable) / (1 - ops.power(self.beta_2, step))
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
class NovoGrad(_Moments):
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
        super(_Moments, self).build(variables)
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
        v = self._largest_of(self._set(self._second, variable, ops.where(is_first, square, v)), variable)
        gradient = gradient / (ops.sqrt(v) + self.epsilon) + self.decay_rate(variable.dtype) * variable
        if self.grad_averaging:
            gradient = ops.where(is_first, gradient, gradient * (1 - self.beta_1))
        step = ops.cast(learning_rate, variable.dtype) * gradient
        variable.assign(
            variable + self._set(self._first, variable, self.beta_1 * self.of(self._first, variable) - step)
        )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "grad_averaging": self.grad_averaging}


@keras.saving.register_keras_serializable(package="Addons")
class LazyAdam(Addon, keras.optimizers.Adam):
    """Adam: gradients of an Embedding are dense here, so it is not lazy."""

    def __init__(self, learning_rate: Any = 0.001, *args: Any, name: str = "LazyAdam", **kwargs: Any) -> None:
        for key, value in zip(("beta_1", "beta_2", "epsilon", "amsgrad"), args, strict=False):
            kwargs[key] = value
        super().__init__(learning_rate, name=name, **kwargs)


@keras.saving.register_keras_serializable(package="Addons")
class Yogi(_Moments):
    """Adam whose second moment grows and falls at the same speed.

    Args:
        learning_rate: A number or a schedule.
        beta1: How much stays of the first moment in a step.
        beta2: How fast the second moment changes.
        epsilon: Added to the divisor.
        l1_regularization_strength: Only 0.
        l2_regularization_strength: Only 0.
        initial_accumulator_value: What second moments begin with.
        activation: "sign" or "tanh" of how far the second moment is from the gradient's square.
        name: A name.
        kwargs: `lr`, `decay`, `clipnorm`, `clipvalue` and what Keras's optimizers take.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-3,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        initial_accumulator_value: float = 1e-6,
        activation: str = "sign",
        name: str = "Yogi",
        **kwargs: Any,
    ) -> None:
        if l1_regularization_strength or l2_regularization_strength:
            raise ValueError("Yogi's regularization has no stand-in: write keras.regularizers.L1L2 at the layers")
        super().__init__(hyperparameter(learning_rate), beta1, beta2, epsilon, name=name, **kwargs)
        self.initial_accumulator_value, self.activation = initial_accumulator_value, activation

    def build(self, variables: Sequence[Any]) -> None:
        """Make the variables."""
        if self.built:
            return
        super(_Moments, self).build(variables)
        begin = keras.initializers.Constant(self.initial_accumulator_value)
        self._first, self._second = self.add_optimizer_variables(variables, ["m", "v"], ["zeros", begin])

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable."""
        gradient, step = ops.cast(gradient, variable.dtype), self._step(variable.dtype)
        m, square, v = self._first_moment(gradient, variable), ops.square(gradient), self.of(self._second, variable)
        towards = ops.sign(square - v) if self.activation == "sign" else ops.tanh(10 * (square - v))
        v = self._set(self._second, variable, v + (1 - self.beta_2) * towards * square)
        rate = ops.cast(learning_rate, variable.dtype)
        rate = rate * ops.sqrt(1 - ops.power(self.beta_2, step)) / (1 - ops.power(self.beta_1, step))
        variable.assign(variable - rate / (ops.sqrt(v) + self.epsilon) * m)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        config = super().get_config()
        config["beta1"], config["beta2"] = config.pop("beta_1"), config.pop("beta_2")
        own = {"initial_accumulator_value": self.initial_accumulator_value, "activation": self.activation}
        return {**config, **own}
