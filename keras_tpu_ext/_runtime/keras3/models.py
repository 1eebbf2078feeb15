"""The optimizers and the `add_loss` terms of Keras 3 models, and how they are pickled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras


def reduced(of_keras: tuple[Any, ...]) -> tuple[Callable[..., keras.Model], Any]:
    """Return what `__reduce__` returns for Keras's own, where the class of a model is known only to the object."""
    return keras.Model._unpickle_model, of_keras[1]


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Return the optimizer that a model was compiled with, and those that it has as attributes for its own step."""
    candidates = [getattr(model, "optimizer", None), *vars(model).values()]
    return list({id(one): one for one in candidates if isinstance(one, keras.optimizers.Optimizer)}.values())


def track_all_variables(optimizer: keras.optimizers.Optimizer) -> None:
    """Let an optimizer track variables that it created without tracking them.

    A `LossScaleOptimizer` builds its inner optimizer while tracking is off. Variables other than slots
    (`Nadam._u_product`) are then in no list, and a step without side effects loses their updates.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    known = {id(variable) for variable in inner.variables}
    for value in list(vars(inner).values()):
        if isinstance(value, keras.Variable) and id(value) not in known:
            inner._track_variable(value)


def clear_loss_ids(model: keras.Model) -> None:
    """Make all layers of `model` forget the losses of an earlier call, before a call without side effects.

    Each layer keeps the ids of its `add_loss` terms until it is called again, and then removes the losses with these
    ids from those of the call: a term of another layer that has reused the id of a deleted term would be lost
    (docs/upstream/lost_add_loss.md).
    """
    for layer in model._flatten_layers():
        layer._loss_ids.clear()


def has_layer_losses(model: keras.Model) -> bool:
    """Return whether `add_loss` terms or activity regularizers have been collected since `clear_loss_ids`."""
    return any(layer._loss_ids for layer in model._flatten_layers())
