"""Functional models, without Keras 2's rewriting of base classes.

When `Sub(inputs, outputs)` is called for a subclass of `keras.Model`, Keras swaps `Model` for `Functional` in the
bases of `Sub` and of every class above it, and `Sub` can no longer be used in the classic way. Here the single object
gets its own class instead, and `Sub` is unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.compat.keras2 import keras, private

Functional = private("engine.functional:Functional")
_is_functional_model_init_params = private("engine.training:is_functional_model_init_params")


def become_functional(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Let a new model be a functional one if the arguments of its `__init__` are inputs and outputs."""
    if _is_functional_model_init_params(args, kwargs) and not isinstance(model, Functional):
        cls: Any = type(model)
        model.__class__ = _functional_variant(cls)


def _init_with_names(init: Callable[..., None]) -> Callable[..., None]:
    def functional_init(
        self: tf.keras.Model,
        inputs: Nest,
        outputs: Nest,
        name: str | None = None,
        trainable: bool = True,
        **kwargs: object,
    ) -> None:
        init(self, inputs=inputs, outputs=outputs, name=name, trainable=trainable, **kwargs)

    return functional_init


@functools.cache
def _functional_variant(cls: type[tf.keras.Model]) -> type[tf.keras.Model]:
    """Return a subclass of `cls` and `Functional` with the name of `cls`, in code and in saved files."""
    members: dict[str, object] = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    if cls.__init__.__module__.startswith("keras_tpu_ext."):  # not the user's
        # Keras reads its signature to see if a config recreates the model.
        members["__init__"] = _init_with_names(cls.__init__)
    variant = type(cls.__name__, (cls, Functional), members)
    package, separator, name = keras.saving.get_registered_name(cls).rpartition(">")
    if separator:
        keras.saving.register_keras_serializable(package=package, name=name)(variant)
        # Both save under the name, and it loads `cls`, which becomes the variant by its arguments.
        keras.saving.register_keras_serializable(package=package, name=name)(cls)
    return variant
