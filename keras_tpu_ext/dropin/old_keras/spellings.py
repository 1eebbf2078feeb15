"""Replacing and adding attributes of Keras, whose modules `keras` and `tf.keras` are different objects."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from keras_tpu_ext.dropin import patching

PREFIXES = ("keras", "keras._tf_keras.keras")  # `modules` leads all others here


def replace(target: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace an attribute as `patching.replace` does; Keras sees the signature of the original function.

    Keras reads signatures with `inspect.getfullargspec`, which looks at `__signature__` and not at `__wrapped__`.
    """

    def made_with_signature(original: Any) -> Any:
        made = make(original)
        if inspect.isfunction(made):
            with contextlib.suppress(ValueError):
                vars(made)["__signature__"] = inspect.signature(original)
        return made

    patching.replace(target, name, made_with_signature)


def modules(name: str) -> list[types.ModuleType]:
    """Return a module of Keras in each spelling; `name` is what follows `keras.`."""
    return [importlib.import_module(f"{prefix}.{name}") for prefix in PREFIXES]


def add_names(module: str, names: Mapping[str, object]) -> None:
    """Add names to a module of Keras, in each spelling.

    Args:
        module: Its name after `keras.`, "optimizers" for instance.
        names: The names that it lacks.
    """
    for found in modules(module):
        for name, value in names.items():
            patching.add(found, name, value)


def add_module(module: str, names: Mapping[str, object]) -> None:
    """Add names to a module of Keras in each spelling, and the module itself where it is missing.

    Args:
        module: Its name after `keras.`, "optimizers.legacy" for instance; its parent is there.
        names: What it has; one of these names that it has already, to say that it is gone, is replaced.
    """
    parent, _, last = module.rpartition(".")
    for prefix in PREFIXES:
        full = f"{prefix}.{module}"
        made = sys.modules.setdefault(full, types.ModuleType(full, f"What old Keras had in `{module}`."))
        vars(made).update(names)
        of = importlib.import_module(f"{prefix}.{parent}" if parent else prefix)
        vars(of)[last] = made
