"""What the arguments that `TPUModel.compile` adds mean, together with what the optimizer asks for itself."""

from __future__ import annotations

import numbers
from typing import Any

from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.models.loss_scale import LossScale


def choose_loss_scale(loss_scale: Any, optimizer: Any, policy: str, auto: bool) -> LossScale | None:
    """Return how the step scales the loss; `None` where it does not, or where the optimizer does it.

    Raises:
        ArgumentError: If `loss_scale` has a value that cannot work, or the optimizer scales the loss as well.
    """
    chosen = LossScale.of(loss_scale)
    of_optimizer = _own_scaling(optimizer)
    if chosen is not None and of_optimizer:
        raise ArgumentError(
            f"loss_scale={loss_scale!r} was given, and the optimizer scales the loss too ({of_optimizer}). "
            "Leave one of them out."
        )
    if chosen is None and not of_optimizer and auto and policy == "mixed_float16":
        return LossScale()
    return chosen


def choose_accumulation(steps: Any, optimizer: Any) -> int:
    """Return how many batches make one step.

    Raises:
        ArgumentError: If `steps` is no positive integer, or the optimizer asks for another number.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ArgumentError(
            f"`gradient_accumulation_steps` must be an integer of at least 1; got {steps!r}. "
            "Write gradient_accumulation_steps=4, or leave it out."
        )
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    of_optimizer = getattr(inner, "gradient_accumulation_steps", None) or 1
    if steps != 1 and of_optimizer not in (1, steps):
        raise ArgumentError(
            f"gradient_accumulation_steps={steps} was given, and the optimizer says {of_optimizer}. "
            "Leave one of them out."
        )
    return max(steps, int(of_optimizer))


def choose_steps_per_execution(steps: Any) -> tuple[int, bool]:
    """Return the number of steps in an execution to begin with, and whether to find a better one.

    Raises:
        ArgumentError: If `steps` is neither a positive integer nor `"auto"`.
    """
    if steps == "auto":
        return 1, True
    if isinstance(steps, bool) or not isinstance(steps, numbers.Integral) or steps < 1:
        raise ArgumentError(
            f'`steps_per_execution` must be an integer of at least 1, or "auto"; got {steps!r}. '
            'Write steps_per_execution="auto", or leave it out.'
        )
    return int(steps), False


def _own_scaling(optimizer: Any) -> str:
    if hasattr(optimizer, "inner_optimizer"):
        return type(optimizer).__name__
    if getattr(optimizer, "loss_scale_factor", None) is not None:
        return f"loss_scale_factor={optimizer.loss_scale_factor}"
    return ""
