"""Models of inputs and outputs, without Keras 2's rewriting of base classes.

When `Sub(inputs, outputs)` is called for a subclass of `keras.Model`, Keras swaps `Model` for `Functional` in the
bases of `Sub` and of every class above it, and `Sub` can no longer be used in the classic way. Here the one object
gets a class of its own instead, and `Sub` stays what it is.

Private names of Keras that this module leans on (tests/_runtime/test_keras2_private_names.py watches them):
`engine.functional.Functional` and `engine.training.is_functional_model_init_params`.
"""

from __future__ import annotations

import functools
from typing import Any

from keras_tpu_ext._runtime.compat.keras2 import keras, private

Functional: Any = private("engine.functional").Functional
_is_of_inputs_and_outputs = private("engine.training").is_functional_model_init_params


class FunctionalByShape:
    """Mixin before `keras.Model`: becomes a functional model when it is given inputs and outputs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if _is_of_inputs_and_outputs(args, kwargs) and not isinstance(self, Functional):
            cls: Any = type(self)
            self.__class__ = _functional_variant(cls)
        super().__init__(*args, **kwargs)


def _init_of_functional(
    self: Any, inputs: Any, outputs: Any, name: str | None = None, trainable: bool = True, **kwargs: Any
) -> None:
    FunctionalByShape.__init__(self, inputs=inputs, outputs=outputs, name=name, trainable=trainable, **kwargs)


@functools.cache
def _functional_variant(cls: Any) -> Any:
    """Return `cls` with `Functional` among its bases, under the same name in code and in saved files."""
    members = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    if cls.__init__ is FunctionalByShape.__init__:
        members["__init__"] = _init_of_functional  # by its arguments Keras tells what it can make again from a config
    variant = type(cls.__name__, (cls, Functional), members)
    package, separator, name = keras.saving.get_registered_name(cls).rpartition(">")
    if separator:
        keras.saving.register_keras_serializable(package=package, name=name)(variant)
        # Both save under the name, and what loads under it is the class itself, which becomes the other by its shape.
        keras.saving.register_keras_serializable(package=package, name=name)(cls)
    return variant
