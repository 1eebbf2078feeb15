"""Functional models, without Keras's rewriting of base classes.

When `Sub(inputs, outputs)` is called for a subclass of `keras.Model`, Keras swaps `Model` for `Functional` in the
bases of `Sub` and of every class above it. A class that is both used like this and subclassed in the classic way, as
`TPUModel` is, then breaks: `class Mine(TPUModel)` suddenly requires inputs and outputs. Here the single object gets
its own class instead, and `Sub` is unchanged.
"""

from __future__ import annotations

import functools
from typing import Any

from keras_tpu_ext._runtime.common.types import Model
from keras_tpu_ext._runtime.compat import Functional, functional_members, keras


def become_functional(model: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Let a new model be a functional one if the arguments of its `__init__` are inputs and outputs."""
    has_both = len(args) == 2 or ("outputs" in kwargs and (len(args) == 1 or "inputs" in kwargs))
    if has_both and not isinstance(model, Functional):
        cls: Any = type(model)
        model.__class__ = _functional_variant(cls)


@functools.cache
def _functional_variant(cls: type[Model]) -> type[Model]:
    """Return a subclass of `cls` and `Functional` with the name of `cls`, in code and in saved files."""
    members = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    variant = type(cls.__name__, (cls, Functional), {**members, **functional_members(cls)})
    package, separator, name = keras.saving.get_registered_name(cls).rpartition(">")
    if separator:
        register = keras.saving.register_keras_serializable(package=package, name=name)
        register(variant)
        register(cls)  # both save under the name, and it loads `cls`, which becomes the variant by its arguments
    return variant
