"""Optimizers of TensorFlow Addons that decay weights by `weight_decay`, whatever the learning rate is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import keras
from keras import ops

from keras_tpu_ext.dropin import report
from keras_tpu_ext.dropin.errors import out_of_reach

_Schedule = keras.optimizers.schedules.LearningRateSchedule


def hyperparameter(value: Any) -> Any:
    """Return what the old optimizers took for a number: one of Python, a schedule (also as its configuration)."""
    if isinstance(value, dict):
        return keras.optimizers.schedules.deserialize(value)
    return value if callable(value) else float(value)


def value_at(value: Any, iterations: Any, dtype: Any) -> Any:
    """Return a hyperparameter's value in a step."""
    if isinstance(value, _Schedule):
        value = value(iterations)
    elif callable(value):
        value = value()
        if type(value).__module__.startswith("tensorflow"):
            raise out_of_reach(
                what="A weight_decay that is read from a tf.Variable",
                why="it would stay what it was in the first step",
                write="weight_decay=schedule, or weight_decay=lambda: 1e-4 * schedule(optimizer.iterations)",
            )
    return ops.cast(value, dtype)


def is_matched(variable: Any, patterns: Iterable[str] | None) -> bool:
    """Return whether a variable's name has one of the patterns in it."""
    name = f"{getattr(variable, 'path', variable.name)}:0"
    return any(re.search(pattern, name) for pattern in patterns or ())


class Addon:
    """What the optimizers of TensorFlow Addons have in common; comes before an optimizer of Keras.

    Args:
        learning_rate: A number or a schedule.
        weight_decay: What `self.decay_rate` returns in each step.
        lr: An old name of `learning_rate`.
        decay: The learning rate is divided by 1 + decay * step.
    """

    def __init__(
        self,
        learning_rate: Any,
        *,
        weight_decay: Any = None,
        lr: Any = None,
        decay: float | None = None,
        **kwargs: Any,
    ) -> None:
        rate = hyperparameter(learning_rate if lr is None else lr)
        if decay:
            report.told(f"{type(self).__name__}(decay=)", "keras.optimizers.schedules.InverseTimeDecay")
            rate = keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)
        super().__init__(learning_rate=rate, **kwargs)  # type: ignore[call-arg]
        self._decay_rate = None if weight_decay is None else hyperparameter(weight_decay)

    def build(self, variables: Sequence[Any]) -> None:
        """Make the variables."""
        if any(variable.name == "embeddings" for variable in variables):
            report.told(
                f"{type(self).__name__} on an Embedding",
                "each step updates all its rows; Addons, on a CPU or GPU, may have updated those of the batch only",
            )
        super().build(variables)  # type: ignore[misc]

    def decay_rate(self, dtype: Any) -> Any:
        """Return the weight decay of this step."""
        return value_at(self._decay_rate, self.iterations, dtype)  # type: ignore[attr-defined]

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Keras's own, which is multiplied by the learning rate, is not wanted."""

    def of(self, slots: Sequence[Any], variable: Any) -> Any:
        """Return an optimizer's variable of a model's variable."""
        return slots[self._get_variable_index(variable)]  # type: ignore[attr-defined]

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        if self._decay_rate is None:
            del config["weight_decay"]
            return config
        rate = self._decay_rate
        serialized = keras.optimizers.schedules.serialize(rate) if isinstance(rate, _Schedule) else rate
        return {**config, "weight_decay": serialized}


class DecoupledWeightDecayExtension(Addon):
    """Decays weights before each step; comes before an optimizer of Keras.

    Args:
        weight_decay: The part of a weight that goes in each step; it is not multiplied by the learning rate.
        exclude_from_weight_decay: Patterns; variables with one of them in their names stay.
        kwargs: The arguments of the optimizer.
    """

    def __init__(self, weight_decay: Any, exclude_from_weight_decay: list[str] | None = None, **kwargs: Any) -> None:
        learning_rate = kwargs.pop("learning_rate", 0.01 if isinstance(self, keras.optimizers.SGD) else 0.001)
        super().__init__(learning_rate, weight_decay=weight_decay, **kwargs)
        self._excluded = exclude_from_weight_decay
        self._decayed: set[int] | None = None

    def apply_gradients(
        self, grads_and_vars: Any, name: Any = None, decay_var_list: Any = None, **kwargs: Any
    ) -> Any:
        """Take a step.

        Args:
            grads_and_vars: Pairs of a gradient and a variable.
            name: Without effect.
            decay_var_list: The variables that are decayed; comes before `exclude_from_weight_decay`.
            kwargs: Without effect.
        """
        self._decayed = {id(variable) for variable in decay_var_list} if decay_var_list else None
        return super().apply_gradients(grads_and_vars)  # type: ignore[misc]

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        for variable in variables:
            chosen = (
                not is_matched(variable, self._excluded) if self._decayed is None else id(variable) in self._decayed
            )
            if chosen:
                self.decay(variable)

    def decay(self, variable: Any) -> None:
        """Decay a variable."""
        variable.assign(variable - self.decay_rate(variable.dtype) * variable)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "exclude_from_weight_decay": self._excluded}


def extend_with_decoupled_weight_decay(base_optimizer: type[Any]) -> type[Any]:
    """Return a class of optimizers like `base_optimizer` whose first argument is the weight decay."""

    class OptimizerWithDecoupledWeightDecay(DecoupledWeightDecayExtension, base_optimizer):
        def __init__(self, weight_decay: Any, **kwargs: Any) -> None:
            super().__init__(weight_decay, **kwargs)

    return OptimizerWithDecoupledWeightDecay


@keras.saving.register_keras_serializable(package="Addons")
class AdamW(DecoupledWeightDecayExtension, keras.optimizers.Adam):
    """Adam that decays weights, as TensorFlow Addons 0.23 has it."""

    def __init__(
        self,
        weight_decay: Any,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        name: str = "AdamW",
        **kwargs: Any,
    ) -> None:
        arguments: dict[str, Any] = {
            "beta_1": beta_1,
            "beta_2": beta_2,
            "epsilon": epsilon,
            "amsgrad": amsgrad,
            "name": name,
        }
        super().__init__(weight_decay, learning_rate=learning_rate, **arguments, **kwargs)


@keras.saving.register_keras_serializable(package="Addons")
class SGDW(DecoupledWeightDecayExtension, keras.optimizers.SGD):
    """Gradient descent that decays weights, as TensorFlow Addons 0.23 has it."""

    def __init__(
        self,
        weight_decay: Any,
        learning_rate: Any = 0.001,
        momentum: float = 0.0,
        nesterov: bool = False,
        name: str = "SGDW",
        **kwargs: Any,
    ) -> None:
        arguments: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov, "name": name}
        super().__init__(weight_decay, learning_rate=learning_rate, **arguments, **kwargs)
