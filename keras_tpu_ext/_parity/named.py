"""Finding the function that `module:function` names, and calling it."""

from __future__ import annotations

import importlib
from typing import Any

from keras_tpu_ext._parity.builder import BuilderSource
from keras_tpu_ext.errors import ArgumentError, ParityCheckError

_WRITE = "Write module:function, my_models:build_model say."


def find_named(named: str) -> BuilderSource:
    """Return where the function that `named` means is, after importing its module.

    Raises:
        ArgumentError: If there is no such module or function.
        ParityCheckError: If the module cannot be imported.
    """
    module, colon, function = named.partition(":")
    if not (module and colon and function):
        raise ArgumentError(f"A function is named by its module and its name; got {named!r}. {_WRITE}")
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ParityCheckError(f"{module} cannot be imported: {error}.") from error
        raise ArgumentError(
            f"There is no module {module!r} in this folder or installed. {_WRITE} The command looks in the folder "
            "that it is called in."
        ) from error
    except Exception as error:  # a file of the user's may raise anything
        raise ParityCheckError(f"{module} cannot be imported: {_in_words(error)}") from error
    if not callable(getattr(imported, function, None)):
        there = [name for name, value in vars(imported).items() if callable(value) and not name.startswith("_")]
        known = f" It has {', '.join(sorted(there)[:8])}." if there else ""
        raise ArgumentError(f"The module {module!r} has no function {function!r}.{known} {_WRITE}")
    return BuilderSource(named, module, function)


def call(source: BuilderSource) -> Any:
    """Return what the function returns.

    Raises:
        ParityCheckError: If it raises.
    """
    try:
        return source.load()()
    except Exception as error:
        raise ParityCheckError(f"{source.label} failed: {_in_words(error)}") from error


def _in_words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
