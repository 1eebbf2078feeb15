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


class FunctionalByShape:
    """Mixin before `keras.Model`: becomes a functional model when it is given inputs and outputs."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        if _functional_init_arguments(args, kwargs) and not isinstance(self, _Functional):
            cls: Any = type(self)
            self.__class__ = _functional_variant(cls)
        super().__init__(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., keras.Model], tuple[object, ...]]:
        """Pickle and copy through a saved model, as Keras does, since the class of `self` is known only here."""
        model: keras.Model = super()
        return keras.Model._unpickle_model, model.__reduce__()[1]


@functools.cache
def _functional_variant(cls: type[keras.Model]) -> type[keras.Model]:
    """Return a subclass of `cls` and `Functional` with the name of `cls`, in code and in saved files."""
    members = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    variant = type(cls.__name__, (cls, _Functional), members)
    package, separator, name = keras.saving.get_registered_name(cls).rpartition(">")
    if separator:
        keras.saving.register_keras_serializable(package=package, name=name)(variant)
    return variant
