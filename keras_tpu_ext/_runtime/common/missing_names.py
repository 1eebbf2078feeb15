"""Handle private names that are gone from the installed version: the import succeeds, and using the name raises."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import re
import traceback
import types
from collections.abc import Iterator
from typing import Any, NoReturn

from keras_tpu_ext._runtime.common import private_names
from keras_tpu_ext.errors import RuntimeNotSupportedError
from keras_tpu_ext.machine.versions import NEWEST_TESTED, find_versions, install_tested_command

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def private(path: str) -> Any:
    """Return the object of a private name; if it is gone, an object that raises when it is used.

    Args:
        path: `"package.module:Class.name"`, or `"package.module"` for the module.
    """
    module, _, names = path.partition(":")
    try:
        found = importlib.import_module(module)
        for name in filter(None, names.split(".")):
            found = getattr(found, name)
    except (AttributeError, ImportError) as error:
        return _Missing(path, error)
    return found


def override(thing: Any, name: str, value: Any) -> None:
    """Set a private attribute that Keras reads."""
    if not hasattr(thing, name):
        raise RuntimeNotSupportedError(_gone(f"{type(thing).__name__}.{name}"))
    setattr(thing, name, value)


def check_overrides(cls: type) -> None:
    """Check that Keras still has the private methods of a model that this package overrides in `cls`."""
    ours = [vars(base) for base in cls.__mro__ if _is_of_package(base)]
    theirs = [vars(base) for base in cls.__mro__ if not _is_of_package(base)]
    for path in private_names.EVERY:
        owner, _, name = re.split(":", path)[-1].rpartition(".")
        overrides = owner in ("Trainer", "Model") and any(name in members for members in ours)
        if overrides and not any(name in members for members in theirs):
            raise RuntimeNotSupportedError(_gone(path))


def _is_of_package(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


class _Missing:
    """Stands in for a private name that is gone, and raises `RuntimeNotSupportedError` when it is used.

    That is when it is called, read, compared or passed to `isinstance`, or when a class that inherits from it is.
    """

    def __init__(self, path: str, error: Exception) -> None:
        self.__dict__.update(path=path, error=error)

    def _raise(self, *args: object, **kwargs: object) -> NoReturn:
        raise RuntimeNotSupportedError(_gone(self.__dict__["path"])) from self.__dict__["error"]

    __call__ = __getattr__ = __setattr__ = __getitem__ = __setitem__ = __contains__ = __iter__ = _raise
    __instancecheck__ = __subclasscheck__ = __eq__ = __hash__ = _raise

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        # A class that inherits from it can be defined; creating an object of it, or using one, raises.
        def raise_(*args: object, **kwargs: object) -> NoReturn:
            self._raise()

        return (type("_Missing", (), {"__new__": raise_, "__getattr__": raise_}),)


@contextlib.contextmanager
def explain_missing_names() -> Iterator[None]:
    """Say what to install if the block fails because a private name is gone from the installed version."""
    try:
        yield
    except AttributeError as error:  # `private` handles what cannot be imported
        name = missing_name(error)
        if name is None:
            raise
        raise RuntimeNotSupportedError(_gone(name, f" in {_place(error)}")) from error


def _gone(name: str, place: str = "") -> str:
    return (
        f"`{name}` is gone, a private name that keras_tpu_ext uses{place}. Installed: {_versions()}. This release "
        f"was tested up to {_listed(NEWEST_TESTED)}. Upgrade this package, or write: "
        f"{install_tested_command(find_versions())}"
    )


def missing_name(error: AttributeError) -> str | None:
    """Return the name in the table that is gone; `None` if the error is about another one.

    Only code of this package uses the names in the table, so an error raised by other code is not ours. Names without
    an underscore, such as `get`, may be missing from the user's objects, too.
    """
    is_private = isinstance(error.obj, types.ModuleType) or (error.name or "").startswith("_")
    if not (is_private and _place(error)):
        return None
    return next((path for path in private_names.EVERY if re.split("[.:]", path)[-1] == error.name), None)


def _place(error: BaseException) -> str:
    """Return the file and line of this package that raised; empty if other code did."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    if not frames or not frames[-1].filename.startswith(_PACKAGE + os.sep):
        return ""
    return f"{os.path.relpath(frames[-1].filename, os.path.dirname(_PACKAGE))}, line {frames[-1].lineno}"


def _versions() -> str:
    there = dataclasses.asdict(find_versions())
    return _listed({package: there[package] for package in NEWEST_TESTED if there[package]})


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())
