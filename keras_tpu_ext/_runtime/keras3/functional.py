"""Functional models, without Keras 3's rewriting of base classes.

When `Sub(inputs, outputs)` is called for a subclass of `keras.Model`, Keras swaps `Model` for `Functional` in
the bases of `Sub` and of every class above it. A class that is both used like this and subclassed in the classic
way, as `TPUModel` is, then breaks: `class Mine(TPUModel)` suddenly requires inputs and outputs. Here the single
object gets its own class instead, and `Sub` is unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from keras_tpu_ext._runtime.common.missing_names import private

_Functional: Any = private("keras.src.models.functional:Functional")
_functional_init_arguments: Any = private("keras.src.models.model:functional_init_arguments")


def become_functional(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Let a new model be a functional one if the arguments of its `__init__` are inputs and outputs."""
    if _functional_init_arguments(args, kwargs) and not isinstance(model, _Functional):
        cls: Any = type(model)
        model.__class__ = _functional_variant(cls)


def reduced(of_keras: tuple[Any, ...]) -> tuple[Callable[..., keras.Model], Any]:
    """Return what `__reduce__` returns for Keras's own, where the class of a model is known only to the object."""
    return keras.Model._unpickle_model, of_keras[1]


@functools.cache
def _functional_variant(cls: type[keras.Model]) -> type[keras.Model]:
    """Return a subclass of `cls` and `Functional` with the name of `cls`, in code and in saved files."""
    members = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    variant = type(cls.__name__, (cls, _Functional), members)
    package, separator, name = keras.saving.get_registered_name(cls).rpartition(">")
    if separator:
        keras.saving.register_keras_serializable(package=package, name=name)(variant)
    return variant
