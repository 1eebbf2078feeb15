"""A view of an optimizer that shares its state and leaves out what the model has done already."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeVar

import keras

from keras_tpu_ext._runtime.common.types import Tensor

OptimizerT = TypeVar("OptimizerT", bound=keras.optimizers.Optimizer)


def optimizer_view(optimizer: OptimizerT, members: tuple[tuple[str, Any], ...] = ()) -> OptimizerT:
    """Return a view of `optimizer` that does not accumulate gradients, because the model does it.

    The user's optimizer stays as it is. Its counter goes on counting batches, so that `iterations` means what it
    meant.

    Args:
        optimizer: The user's optimizer.
        members: Further members of the view's class, by name.
    """
    optimizer_class: Any = type(optimizer)
    view: OptimizerT = object.__new__(_view_class(optimizer_class, members))
    object.__setattr__(view, "__dict__", optimizer.__dict__)
    return view


def innermost(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer that takes the steps, within one that scales the loss."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def own_accumulation_steps(optimizer: keras.optimizers.Optimizer) -> int:
    """Return the `gradient_accumulation_steps` that an optimizer was made with; 1 without."""
    return innermost(optimizer).__dict__.get("gradient_accumulation_steps") or 1


def apply_stateless(
    optimizer: keras.optimizers.Optimizer,
    values: Sequence[Tensor],
    gradients: Sequence[Tensor],
    trainable: Sequence[Tensor],
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Apply gradients as `optimizer.stateless_apply`, without accumulation by the optimizer itself."""
    others = own_accumulation_steps(optimizer) - 1
    if not others:
        return optimizer.stateless_apply(values, gradients, trainable)
    # It counts batches, and its learning rate schedule goes by them.
    iterations = innermost(optimizer)._iterations
    place = next(i for i, variable in enumerate(optimizer.variables) if variable is iterations)
    before = values[place]
    values = [value + others if i == place else value for i, value in enumerate(values)]
    trainable, after = optimizer_view(optimizer).stateless_apply(values, gradients, trainable)
    # Its own loss scaling may have skipped the step, and then it does not count at all.
    was_skipped = keras.ops.equal(after[place], values[place])
    counted = keras.ops.where(was_skipped, before, after[place])
    return trainable, [counted if i == place else value for i, value in enumerate(after)]


def track_all_variables(optimizer: keras.optimizers.Optimizer) -> None:
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
def _view_class(optimizer_class: Any, members: tuple[tuple[str, Any], ...]) -> Any:
    def inner_optimizer(self: Any) -> Any:
        return optimizer_view(self.__dict__["inner_optimizer"], members)

    def iterations(self: Any) -> Any:
        steps = self.__dict__["gradient_accumulation_steps"] or 1
        return self._iterations if steps == 1 else keras.ops.floor_divide(self._iterations, steps)

    namespace: dict[str, Any] = {
        "gradient_accumulation_steps": property(lambda self: None),
        "iterations": property(iterations),
        **dict(members),
    }
    if issubclass(optimizer_class, keras.optimizers.LossScaleOptimizer):
        namespace["inner_optimizer"] = property(inner_optimizer)
    return type(optimizer_class.__name__, (optimizer_class,), namespace)
