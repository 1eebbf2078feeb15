"""Errors for private names that are gone from the installed version: importing one succeeds, and its use raises."""

from __future__ import annotations

import importlib
from typing import Any, NoReturn

from keras_tpu_ext.errors import RuntimeNotSupportedError
from keras_tpu_ext.machine.versions import NEWEST_TESTED, find_versions, how_to_get_tested_versions

_RUNTIME = "keras_tpu_ext._runtime."
_OWN = {"_kte", "global_mean", "minimize"}  # what a model gets that Keras's has not


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
        raise gone(f"{type(thing).__name__}.{name}")
    setattr(thing, name, value)


def check_overrides(cls: type) -> None:
    """Check that Keras still has each method of a model that a mixin of this package overrides in `cls`."""
    ours = {name for base in cls.__mro__ if base.__module__.startswith(_RUNTIME) for name in vars(base)}
    theirs = {name for base in cls.__mro__ if not base.__module__.startswith(_RUNTIME) for name in vars(base)}
    for name in sorted(ours - theirs - _OWN):
        if not name.startswith("__"):
            raise gone(f"Model.{name}")


class _Missing:
    """Stands in for a private name that is gone, and raises when it or a class that inherits from it is used."""

    def __init__(self, path: str, error: Exception) -> None:
        self.__dict__.update(path=path, error=error)

    def _raise(self, *args: object, **kwargs: object) -> NoReturn:
        raise gone(self.__dict__["path"]) from self.__dict__["error"]

    __call__ = __getattr__ = __setattr__ = __getitem__ = __setitem__ = __contains__ = __iter__ = _raise
    __instancecheck__ = __subclasscheck__ = __eq__ = __hash__ = _raise

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (type("_Missing", (), {"__new__": self._raise, "__getattr__": self._raise}),)


def gone(name: str) -> RuntimeNotSupportedError:
    """Return the error for a private name that is gone, which says what to install."""
    versions = find_versions()
    installed = {package: version for package in NEWEST_TESTED if (version := getattr(versions, package))}
    return RuntimeNotSupportedError(
        f"`{name}` is gone, a private name that keras_tpu_ext uses. Installed: {_listed(installed)}. This release "
        f"was tested up to {_listed(NEWEST_TESTED)}. Upgrade this package, or "
        f"{how_to_get_tested_versions(versions)}"
    )


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())
