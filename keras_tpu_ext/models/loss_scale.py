"""`LossScale`: how the scale of the loss begins, grows and shrinks in mixed precision."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.errors import ArgumentError


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
@dataclasses.dataclass(frozen=True)
class LossScale:
    """The loss is multiplied by a scale before gradients are taken, and the gradients are divided by it.

    float16 has no numbers below 6e-8, so small gradients would vanish without it. A step whose gradients are not
    all finite, on any replica, is skipped: it changes nothing but the scale. The rule is that of Micikevicius et
    al., Mixed Precision Training (2018), section 3.2, with the defaults of Keras.

    Args:
        initial: Scale of the first step. Defaults to 2**15.
        growth_steps: After this many finite steps in a row the scale grows. Defaults to 2000.
        growth_factor: By how much it grows; 1 keeps it. Defaults to 2.
        backoff_factor: What it is multiplied by after a skipped step; 1 keeps it. Defaults to 0.5.
        minimum: The scale never falls below. Defaults to 1.
        maximum: The scale never grows above. Defaults to 2**24.

    Raises:
        ArgumentError: If a value cannot work.

    Example:
        ```python
        model.compile("adam", "mse", loss_scale=kte.LossScale(initial=2**12, growth_steps=500))
        ```
    """

    initial: float = 2.0**15
    growth_steps: int = 2000
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    minimum: float = 1.0
    maximum: float = 2.0**24

    def __post_init__(self) -> None:
        self._check("initial", self._positive(self.initial), "a positive number", "LossScale(initial=2**15)")
        whole = isinstance(self.growth_steps, int) and not isinstance(self.growth_steps, bool)
        self._check("growth_steps", whole and self.growth_steps >= 1, "an integer of at least 1", "growth_steps=2000")
        grows = self._positive(self.growth_factor) and self.growth_factor >= 1
        self._check("growth_factor", grows, "a number of at least 1", "growth_factor=2")
        shrinks = self._positive(self.backoff_factor) and self.backoff_factor <= 1
        self._check("backoff_factor", shrinks, "a number in (0, 1]", "backoff_factor=0.5")
        self._check("minimum", self._positive(self.minimum), "a positive number", "minimum=1")
        above = self._positive(self.maximum) and self.minimum <= self.initial <= self.maximum
        self._check("maximum", above, "at least `initial`, which is at least `minimum`", "maximum=2**24")

    @classmethod
    def of(cls, value: Any) -> LossScale | None:
        """Return the `LossScale` that `compile(loss_scale=value)` means; `None` for `None`.

        Raises:
            ArgumentError: If `value` is not `None`, a positive number, `"dynamic"` or a `LossScale`.
        """
        if value is None or isinstance(value, LossScale):
            return value
        if value == "dynamic":
            return cls()
        if cls._positive(value):
            fixed = float(value)
            return cls(fixed, growth_factor=1.0, backoff_factor=1.0, minimum=fixed, maximum=fixed)
        raise ArgumentError(
            '`loss_scale` must be None, a positive number, "dynamic" or a kte.LossScale; '
            f'got {value!r}. Write loss_scale="dynamic", or loss_scale=1024.'
        )

    def after(
        self, scale: Any, good_steps: Any, finite: Any, where: Callable[[Any, Any, Any], Any]
    ) -> tuple[Any, Any]:
        """Return the scale and the number of finite steps in a row after one more step.

        Args:
            scale: The scale of the step.
            good_steps: Finite steps in a row before it.
            finite: Whether all its gradients, unscaled and summed over replicas, were finite.
            where: `where(condition, a, b)`, of Python or of a framework.
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

    def _check(self, name: str, good: bool, needed: str, write: str) -> None:
        if not good:
            raise ArgumentError(f"LossScale: `{name}` must be {needed}; got {getattr(self, name)!r}. Write {write}.")

    @staticmethod
    def _positive(value: Any) -> bool:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and math.isfinite(value) and value > 0
