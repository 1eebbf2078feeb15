"""A second face of an optimizer, which shares every bit of its state and takes what the model has done already.

Private names of Keras that this module leans on (tests/_runtime/test_keras3_private_names.py watches them):
`Optimizer._iterations` and `_track_variable`, and `gradient_accumulation_steps` and
`LossScaleOptimizer.inner_optimizer` as instance attributes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import keras


def optimizer_view(optimizer: Any, more: tuple[tuple[str, Any], ...] = ()) -> Any:
    """Return a face of `optimizer` that does not accumulate, because the model does it.

    The user's optimizer stays as it is. Its counter goes on counting batches, so that `iterations` means what it
    meant.

    Args:
        optimizer: The user's optimizer.
        more: Further members of the face's class, by name.
    """
    optimizer_class: Any = type(optimizer)
    face: Any = object.__new__(_face_class(optimizer_class, more))
    object.__setattr__(face, "__dict__", optimizer.__dict__)
    return face


def innermost(optimizer: Any) -> Any:
    """Return the optimizer that takes the steps, within one that scales the loss."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def track_all_variables(optimizer: Any) -> None:
    """Let an optimizer know of variables that it made without noticing.

    A `LossScaleOptimizer` builds the one within it while tracking is off. What that one makes beside its slots
    (`Nadam._u_product`) is then in no list, and a step without side effects loses what becomes of it.
    """
    inner = innermost(optimizer)
    known = {id(variable) for variable in inner.variables}
    for value in list(vars(inner).values()):
        if isinstance(value, keras.Variable) and id(value) not in known:
            inner._track_variable(value)


@functools.cache
def _face_class(optimizer_class: Any, more: tuple[tuple[str, Any], ...]) -> Any:
    def inner_optimizer(self: Any) -> Any:
        return optimizer_view(self.__dict__["inner_optimizer"], more)

    def iterations(self: Any) -> Any:
        steps = self.__dict__["gradient_accumulation_steps"] or 1
        return self._iterations if steps == 1 else keras.ops.floor_divide(self._iterations, steps)

    members: Mapping[str, Any] = {
        "gradient_accumulation_steps": property(lambda self: None),
        "iterations": property(iterations),
        **dict(more),
    }
    if issubclass(optimizer_class, keras.optimizers.LossScaleOptimizer):
        members = {**members, "inner_optimizer": property(inner_optimizer)}
    return type(optimizer_class.__name__, (optimizer_class,), dict(members))
