"""Optimizers of TensorFlow Addons 0.23: their mathematics for a dense gradient, on Keras 3's Adam."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import keras
from keras import ops

from keras_tpu_ext.dropin import report
from keras_tpu_ext.dropin.errors import out_of_reach

_register = keras.saving.register_keras_serializable(package="Addons")
_schedules = keras.optimizers.schedules


class _Adam(keras.optimizers.Adam):
    """Adam with what the others need: moments, and a decay of weights that may have a schedule of its own."""

    _own: tuple[str, ...] = ()  # arguments of the class

    def __init__(self, *args: Any, weight_decay: Any = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        is_config = isinstance(weight_decay, dict)
        self._decay_rate = _schedules.deserialize(weight_decay) if is_config else weight_decay

    def build(self, variables: Sequence[Any]) -> None:
        if any(variable.name == "embeddings" for variable in variables):
            report.told(
                f"{type(self).__name__} on an Embedding",
                "each step updates all its rows; Addons, on a CPU or GPU, may have updated those of the batch only",
            )
        super().build(variables)

    def decay_rate(self, dtype: Any) -> Any:
        """Return the weight decay of this step."""
        rate = self._decay_rate
        if isinstance(rate, _schedules.LearningRateSchedule):
            rate = rate(self.iterations)
        elif callable(rate):
            rate = rate()
            if type(rate).__module__.startswith("tensorflow"):
                raise out_of_reach(
                    what="A weight_decay that is read from a tf.Variable",
                    why="it would stay what it was in the first step",
                    write="weight_decay=schedule, or weight_decay=lambda: 1e-4 * schedule(optimizer.iterations)",
                )
        return ops.cast(rate, dtype)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Keras's own, which is multiplied by the learning rate, is not wanted."""

    def _moments(self, gradient: Any, variable: Any) -> tuple[Any, Any]:
        """Return both moments after this step, which are kept."""
        index = self._get_variable_index(variable)
        m, v = self._momentums[index], self._velocities[index]
        m.assign(self.beta_1 * m + (1 - self.beta_1) * gradient)
        v.assign(self.beta_2 * v + (1 - self.beta_2) * ops.square(gradient))
        if not self.amsgrad:
            return m, v
        largest = self._velocity_hats[index]
        largest.assign(ops.maximum(largest, v))
        return m, largest

    def get_config(self) -> dict[str, Any]:
        rate = self._decay_rate
        if isinstance(rate, _schedules.LearningRateSchedule):
            rate = _schedules.serialize(rate)
        own = {name: getattr(self, name) for name in self._own}
        return {**super().get_config(), **own, "weight_decay": rate}


def _is_matched(variable: Any, patterns: Iterable[str] | None) -> bool:
    """Return whether a variable's name has one of the patterns in it."""
    return any(re.search(pattern, f"{variable.path}:0") for pattern in patterns or ())


@_register
class AdamW(_Adam):
    """Adam that first takes `weight_decay` of each weight, as in Addons whatever the learning rate is."""

    _own = ("exclude_from_weight_decay",)

    def __init__(
        self,
        weight_decay: Any,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        name: str = "AdamW",
        exclude_from_weight_decay: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate, beta_1, beta_2, epsilon, amsgrad, weight_decay=weight_decay, name=name, **kwargs
        )
        self.exclude_from_weight_decay = exclude_from_weight_decay

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        for variable in variables:
            if not _is_matched(variable, self.exclude_from_weight_decay):
                self.decay(variable)

    def decay(self, variable: Any) -> None:
        """Decay a variable."""
        variable.assign(variable - self.decay_rate(variable.dtype) * variable)


@_register
class RectifiedAdam(_Adam):
    """Adam whose first steps are of gradient descent, with a warm-up if `total_steps` are given, as in Addons."""

    _own = ("sma_threshold", "total_steps", "warmup_proportion", "min_lr")

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
        adam = {"weight_decay": weight_decay, "name": name, **kwargs}
        super().__init__(learning_rate, beta_1, beta_2, epsilon, amsgrad, **adam)
        self.sma_threshold, self.total_steps = sma_threshold, total_steps
        self.warmup_proportion, self.min_lr = warmup_proportion, min_lr

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable."""
        gradient, step = ops.cast(gradient, variable.dtype), ops.cast(self.iterations + 1, variable.dtype)
        learning_rate = self._warmed_up(ops.cast(learning_rate, variable.dtype), step)
        update = self._rectified(*self._moments(gradient, variable), step)
        update = update + self.decay_rate(variable.dtype) * variable
        variable.assign(variable - learning_rate * update)

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


@_register
class LAMB(_Adam):
    """Adam for large batches: the step of a variable is as long as the variable, as in Addons."""

    _own = ("exclude_from_weight_decay", "exclude_from_layer_adaptation")

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
        adam = {"weight_decay": weight_decay, "name": name, **kwargs}
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **adam)
        self.exclude_from_weight_decay = exclude_from_weight_decay
        self.exclude_from_layer_adaptation = exclude_from_layer_adaptation or exclude_from_weight_decay

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable."""
        gradient, step = ops.cast(gradient, variable.dtype), ops.cast(self.iterations + 1, variable.dtype)
        m, v = self._moments(gradient, variable)
        root = ops.sqrt(v / (1 - ops.power(self.beta_2, step)))
        update = m / (1 - ops.power(self.beta_1, step)) / (root + self.epsilon)
        if not _is_matched(variable, self.exclude_from_weight_decay):
            update = update + self.decay_rate(variable.dtype) * variable
        if not _is_matched(variable, self.exclude_from_layer_adaptation):
            update = _ratio(variable, update) * update
        variable.assign(variable - ops.cast(learning_rate, variable.dtype) * update)


def _ratio(variable: Any, update: Any) -> Any:
    """Return how much longer a variable is than its update; 1 if one of them is zero."""
    length, step = (ops.sqrt(ops.sum(ops.square(value))) for value in (variable, update))
    known = ops.logical_and(length > 0, step > 0)
    return ops.where(known, length / ops.where(known, step, 1), 1)
