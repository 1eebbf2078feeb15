"""Errors for private names that are gone from the installed version: importing one succeeds, and its use raises."""

from __future__ import annotations

import contextlib
import importlib
import re
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

from keras_tpu_ext._runtime.common import private_names
from keras_tpu_ext.errors import RuntimeNotSupportedError
from keras_tpu_ext.machine.versions import NEWEST_TESTED, find_versions, how_to_get_tested_versions

_PACKAGE = "keras_tpu_ext."


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


def override(thing: object, name: str, value: object) -> None:
    """Set a private attribute that Keras reads."""
    if not hasattr(thing, name):
        raise _gone(f"{type(thing).__name__}.{name}")
    setattr(thing, name, value)


def check_overrides(cls: type) -> None:
    """Check that Keras still has the private methods of a model that this package overrides in `cls`."""
    ours = [vars(base) for base in cls.__mro__ if base.__module__.startswith(_PACKAGE)]
    theirs = [vars(base) for base in cls.__mro__ if not base.__module__.startswith(_PACKAGE)]
    for path in private_names.EVERY:
        owner, _, name = path.split(":")[-1].rpartition(".")
        overrides = owner in ("Trainer", "Model") and any(name in members for members in ours)
        if overrides and not any(name in members for members in theirs):
            raise _gone(path)


@contextlib.contextmanager
def explain_missing_names() -> Iterator[None]:
    """Say what to install if the block fails because a private name is gone from the installed version."""
    try:
        yield
    except AttributeError as error:  # `private` handles what cannot be imported
        name = missing_name(error)
        if name is None:
            raise
        raise _gone(name) from error


def missing_name(error: AttributeError) -> str | None:
    """Return the name in the table that this package did not find; `None` if the error is about another one."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_ours = bool(frames) and frames[-1].f_globals.get("__name__", "").startswith(_PACKAGE)
    if not is_ours or not (error.name or "").startswith("_"):  # the user's objects may lack a `get`
        return None
    return next((path for path in private_names.EVERY if re.split("[.:]", path)[-1] == error.name), None)


class _Missing:
    """Stands in for a private name that is gone, and raises when it or a class that inherits from it is used."""

    def __init__(self, path: str, error: Exception) -> None:
        self.__dict__.update(path=path, error=error)

    def _raise(self, *args: object, **kwargs: object) -> NoReturn:
        raise _gone(self.__dict__["path"]) from self.__dict__["error"]

    __call__ = __getattr__ = __setattr__ = __getitem__ = __setitem__ = __contains__ = __iter__ = _raise
    __instancecheck__ = __subclasscheck__ = __eq__ = __hash__ = _raise

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (type("_Missing", (), {"__new__": self._raise, "__getattr__": self._raise}),)


def _gone(name: str) -> RuntimeNotSupportedError:
    versions = find_versions()
    installed = {package: version for package in NEWEST_TESTED if (version := getattr(versions, package))}
    return RuntimeNotSupportedError(
        f"`{name}` is gone, a private name that keras_tpu_ext uses. Installed: {_listed(installed)}. This release "
        f"was tested up to {_listed(NEWEST_TESTED)}. Upgrade this package, or "
        f"{how_to_get_tested_versions(versions)}"
    )


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())
