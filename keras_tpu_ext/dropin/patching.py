"""Replace or add attributes of the frameworks, for as long as the process lives.

Not as `_runtime` patches, which takes its patches back: this is there before, and a later patch goes round it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

from keras_tpu_ext._runtime.common.patches import attribute_of

Function = Callable[..., Any]


def wrap(functions: Mapping[str, Function]) -> None:
    """Let functions run instead of others, each of which its function gets as the first argument.

    Args:
        functions: Each by the full name of what it runs instead of, as `_runtime/common/patch_table.py` has it.
    """
    replace({name: functools.partial(_wrapper, function) for name, function in functions.items()})


def _wrapper(function: Function, stock: Function) -> Function:
    return lambda *args, **kwargs: function(stock, *args, **kwargs)


def replace(makers: Mapping[str, Callable[[Any], Any]], target: Any = None) -> None:
    """Replace attributes that are there; of several replacements the last goes round the others.

    Keras reads signatures with `inspect.getfullargspec`, which looks at `__signature__` and not at `__wrapped__`.

    Args:
        makers: What makes the new attribute from the old one, by its full name.
        target: The module or class, if it is not the one that the name says.

    Raises:
        LookupError: If the table does not have a name.
    """
    for name, make in makers.items():
        attribute = attribute_of(name)
        for owner in owners(name) if target is None else [target]:
            raw: Any = inspect.getattr_static(owner, attribute, None)
            is_method = isinstance(raw, (classmethod, staticmethod))
            stock = raw.__func__ if is_method else getattr(owner, attribute)
            made = make(stock)
            if inspect.isfunction(made) and inspect.isroutine(stock):
                functools.update_wrapper(made, stock)
                with contextlib.suppress(ValueError):
                    vars(made)["__signature__"] = inspect.signature(stock)
            setattr(owner, attribute, type(raw)(made) if is_method else made)


def owners(name: str) -> list[Any]:
    """Return what has the attribute of this name: a class, or a module, in both spellings if it is Keras's."""
    path, *parts = name.split(".")[:-1]
    owner: Any = importlib.import_module(path)
    for part in parts:
        path = f"{path}.{part}"
        owner = getattr(owner, part) if hasattr(owner, part) else importlib.import_module(path)
    if not isinstance(owner, types.ModuleType) or not path.startswith("keras.") or path[6:].startswith(("src", "_")):
        return [owner]
    return [owner, importlib.import_module(f"keras._tf_keras.{path}")]  # `tf.keras`


def add(target: Any, name: str, value: object) -> None:
    """Add an attribute, unless there is one of this name."""
    if not hasattr(target, name):
        setattr(target, name, value)
