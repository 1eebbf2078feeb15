"""Keras 3 models: their optimizers and variables, pickling, and which layers look at single examples only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.types import Model, Variable
from keras_tpu_ext._runtime.compat.keras3 import functional_of
from keras_tpu_ext._runtime.training.compile_utils import is_known, layer_is_known

get_global_attribute: Any = private("keras.src.backend.common.global_state:get_global_attribute")


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


def variables_of(model: Model) -> list[tuple[str, Variable]]:
    """Return each variable that training changes and its role, without those of the step; each of them once."""
    # What layers without their own seed draw from, in a step that is not compiled.
    shared = get_global_attribute("global_seed_generator")
    named = [("weight", variable) for variable in model.variables]
    named += [("optimizer", variable) for optimizer in optimizers_of(model) for variable in optimizer.variables]
    named += [("metric", variable) for variable in model.metrics_variables]
    named += [] if shared is None else [("random", shared.state)]
    return list({id(variable): (role, variable) for role, variable in reversed(named)}.values())[::-1]


def not_kept(model: Model) -> str:
    """Return an empty string: all random numbers of Keras 3's layers come from variables."""
    return ""


# Of the operations that a functional model may have between its layers, the elementwise ones.
_ELEMENTWISE = (
    "Absolute Add Cast Clip Divide Exp Gelu LeakyRelu Log Maximum Minimum Multiply Negative Power Relu Relu6 Sigmoid "
    "Silu Softplus Sqrt Square Subtract Tanh TrueDivide"
)


def own_layers(model: Model) -> list[str]:
    """Return the names of layers and operations that are not known to process each example independently."""
    functional = functional_of(model._kte.inner)
    if functional is None or not is_known(type(model).call) or not is_known(type(model).predict_step):
        return [model.name]
    layers = functional._flatten_layers(include_self=False)
    operations = [
        operation
        for part in [functional, *layers]
        if functional_of(part) is not None
        for operation in functional_of(part).operations
        if not isinstance(operation, keras.layers.Layer)
    ]
    unknown = [layer.name for layer in layers if not layer_is_known(layer)]
    return unknown + [each.name for each in operations if not _operation_is_known(each)]


def _operation_is_known(operation: keras.Operation) -> bool:
    return type(operation).__name__ in _ELEMENTWISE.split() and is_known(type(operation))
