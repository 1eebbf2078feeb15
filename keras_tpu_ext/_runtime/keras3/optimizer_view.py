"""A view of an optimizer that shares its state and does some things differently."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import keras

OptimizerT = TypeVar("OptimizerT", bound=keras.optimizers.Optimizer)


def optimizer_view(optimizer: OptimizerT, members: tuple[tuple[str, Any], ...]) -> OptimizerT:
    """Return a view of `optimizer` with other `members`; the user's optimizer is unchanged.

    Args:
        optimizer: The user's optimizer.
        members: Members of the view's class, by name; the inner optimizer of one that scales the loss gets them too.
    """
    optimizer_class: Any = type(optimizer)
    view: OptimizerT = object.__new__(_view_class(optimizer_class, members))
    object.__setattr__(view, "__dict__", optimizer.__dict__)
    return view


def innermost(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer that takes the steps, inside one that scales the loss."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def track_all_variables(optimizer: keras.optimizers.Optimizer) -> None:
    """Let an optimizer track variables that it created without tracking them.

    A `LossScaleOptimizer` builds its inner optimizer while tracking is off. Variables other than slots
    (`Nadam._u_product`) are then in no list, and a step without side effects loses their updates.
    """
    inner = innermost(optimizer)
    known = {id(variable) for variable in inner.variables}
    for value in list(vars(inner).values()):
        if isinstance(value, keras.Variable) and id(value) not in known:
            inner._track_variable(value)


@functools.cache
def _view_class(optimizer_class: Any, members: tuple[tuple[str, Any], ...]) -> Any:
    def inner_optimizer(self: Any) -> Any:
        return optimizer_view(self.__dict__["inner_optimizer"], members)

    for name in (name for name, _ in members if name.startswith("_")):
        getattr(optimizer_class, name)  # if one is gone, Keras would not call ours
    namespace: dict[str, Any] = dict(members)
    if issubclass(optimizer_class, keras.optimizers.LossScaleOptimizer):
        namespace["inner_optimizer"] = property(inner_optimizer)
    return type(optimizer_class.__name__, (optimizer_class,), namespace)
