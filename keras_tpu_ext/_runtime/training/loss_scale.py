"""`LossScale`: dynamic or static loss scaling for mixed precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_tpu_ext._runtime.compat import keras
from keras_tpu_ext.checks import arguments as check


@keras.saving.register_keras_serializable(package="keras_tpu_ext")
@dataclasses.dataclass(frozen=True)
class LossScale:
    """Multiplies the loss by a scale before gradients are computed, and divides the gradients by it.

    float16 has no numbers below 6e-8, so small gradients would vanish without it. A step whose gradients are not all
    finite, on any replica, is skipped: only the scale changes. The rule is that of Micikevicius et al., Mixed
    Precision Training (2018), section 3.2, with the defaults of Keras.

    Args:
        initial: Scale of the first step. Defaults to 2**15.
        growth_steps: Number of finite steps in a row after which the scale grows. Defaults to 2000.
        growth_factor: Factor by which it grows; 1 keeps it. Defaults to 2.
        backoff_factor: Factor applied after a skipped step; 1 keeps it. Defaults to 0.5.
        minimum: Smallest scale. Defaults to 1.
        maximum: Largest scale. Defaults to 2**24.

    Raises:
        ArgumentError: If an argument is invalid.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        with kte.strategy_scope(precision="mixed_float16"):
            inputs = keras.Input((4,))
            x = keras.layers.Dense(16, activation="relu")(inputs)
            model = kte.TPUModel(inputs, keras.layers.Dense(1, dtype="float32")(x))
            model.compile("adam", "mse", loss_scale=kte.LossScale(initial=2**12, growth_steps=500))
        x = np.random.default_rng(0).normal(size=(256, 4))
        model.fit(x, x.sum(axis=1))
        ```
    """

    initial: float = 2.0**15
    growth_steps: int = 2000
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    minimum: float = 1.0
    maximum: float = 2.0**24

    def __post_init__(self) -> None:
        caller = type(self).__name__
        checked = {
            "initial": check.number(caller, "initial", self.initial, above=0, example="2**15"),
            "growth_steps": check.integer(caller, "growth_steps", self.growth_steps, example=2000),
            "growth_factor": check.number(caller, "growth_factor", self.growth_factor, minimum=1, example=2),
            "backoff_factor": check.number(
                caller, "backoff_factor", self.backoff_factor, above=0, maximum=1, example=0.5
            ),
            "minimum": check.number(caller, "minimum", self.minimum, above=0, example=1),
            "maximum": check.number(caller, "maximum", self.maximum, above=0, example="2**24"),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if not self.minimum <= self.initial <= self.maximum:
            needed = "at least `initial`, which is at least `minimum`"
            raise check.argument_error(caller, "maximum", needed, repr(self.maximum), "maximum=2**24")

    @classmethod
    def of(cls, value: object) -> LossScale | None:
        """Return the `LossScale` for `compile(loss_scale=value)`; `None` for `None`.

        Raises:
            ArgumentError: If `value` is not `None`, a positive number, `"dynamic"` or a `LossScale`.
        """
        if value is None or isinstance(value, LossScale):
            return value
        if value == "dynamic":
            return cls()
        what, example = 'None, "dynamic", a kte.LossScale or a number', '"dynamic", or loss_scale=1024'
        fixed = check.number("compile", "loss_scale", value, above=0, what=what, example=example)
        return cls(fixed, growth_factor=1.0, backoff_factor=1.0, minimum=fixed, maximum=fixed)

    def after(
        self, scale: Any, good_steps: Any, finite: Any, where: Callable[[Any, Any, Any], Any]
    ) -> tuple[Any, Any]:
        """Return the scale and the number of finite steps in a row after one more step.

        Args:
            scale: The scale of the step.
            good_steps: Number of finite steps in a row before it.
            finite: Whether all its gradients, unscaled and summed over replicas, were finite.
            where: A function `where(condition, a, b)`, in Python or of a framework.
        """
        counted = good_steps + 1
        full = counted >= self.growth_steps
        grown = scale * self.growth_factor
        grown = where(grown > self.maximum, scale * 0 + self.maximum, grown)
        shrunk = scale * self.backoff_factor
        shrunk = where(shrunk < self.minimum, scale * 0 + self.minimum, shrunk)
        zero = good_steps * 0
        return (
            where(finite, where(full, grown, scale), shrunk),
            where(finite, where(full, zero, counted), zero),
        )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make an equal `LossScale`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LossScale:
        """Return the `LossScale` that `get_config` described."""
        return cls(**config)
