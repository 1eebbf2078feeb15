"""Functional models, without Keras 2's rewriting of base classes.

When `Sub(inputs, outputs)` is called for a subclass of `keras.Model`, Keras swaps `Model` for `Functional` in the
bases of `Sub` and of every class above it, and `Sub` can no longer be used in the classic way. Here the single object
gets its own class instead, and `Sub` is unchanged.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.compat.keras2 import keras, private

Functional = private("engine.functional:Functional")
_is_functional_model_init_params = private("engine.training:is_functional_model_init_params")


class FunctionalByShape:
    """Mixin before `keras.Model`: becomes a functional model when it is given inputs and outputs."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        if _is_functional_model_init_params(args, kwargs) and not isinstance(self, Functional):
            cls: Any = type(self)
            self.__class__ = _functional_variant(cls)
        super().__init__(*args, **kwargs)


def _functional_init(
    self: FunctionalByShape,
    inputs: Nest,
    outputs: Nest,
    name: str | None = None,
    trainable: bool = True,
    **kwargs: object,
) -> None:
    FunctionalByShape.__init__(self, inputs=inputs, outputs=outputs, name=name, trainable=trainable, **kwargs)


@functools.cache
def _functional_variant(cls: type[tf.keras.Model]) -> type[tf.keras.Model]:
    """Return a subclass of `cls` and `Functional` with the name of `cls`, in code and in saved files."""
    members: dict[str, object] = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    if cls.__init__ is FunctionalByShape.__init__:
        members["__init__"] = _functional_init  # Keras reads its signature to see if a config recreates the model
    variant = type(cls.__name__, (cls, Functional), members)
    package, separator, name = keras.saving.get_registered_name(cls).rpartition(">")
    if separator:
        keras.saving.register_keras_serializable(package=package, name=name)(variant)
        # Both save under the name, and it loads `cls`, which becomes the variant by its arguments.
        keras.saving.register_keras_serializable(package=package, name=name)(cls)
    return variant
