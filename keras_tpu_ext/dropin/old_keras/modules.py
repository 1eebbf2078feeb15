"""Modules and names of old Keras, under all spellings of Keras, led to where they are in Keras 3.

`tools/migrate/tables/old_modules.py` has the names. `tensorflow.keras` and `tensorflow.python.keras`, TensorFlow's
own copy of Keras 2, become other names of the modules of Keras 3, so that a class is one object everywhere. A module
that is gone is one that looks its names up; a name that cannot be mapped is a class that refuses when it is used,
since old programs import much that they do not use.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn

from keras_tpu_ext.dropin import imports, patching
from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.report import mapped
from keras_tpu_ext.tools.migrate.tables.old_modules import OLD_MODULES, OLD_NAMES, OUT_OF_REACH, ROOTS

_TF_KERAS = "keras._tf_keras.keras"
_OF_KERAS = ("keras.api.", "keras.src.")  # these spell `keras`, the others `tf.keras`


def install() -> None:
    """Make the modules importable, and their names attributes of the modules that Keras 3 still has."""
    imports.provide(lambda name: _find(name) if _is_spelling(name) else None, first=True)
    imports.provide(lambda name: None if _is_spelling(name) else _find(name), first=False)
    _look_up_missing_names()
    _take_over_tensorflow()
    patching.add(_old_name("keras.preprocessing.image.Iterator"), "next", lambda self: next(self))
    alpha_dropout, threshold = sys.modules["keras.layers"].AlphaDropout, _old_name("keras.layers.ThresholdedReLU")
    patching.replace(
        {  # two layers that compute with TensorFlow
            f"{_TF_KERAS}.layers.AlphaDropout": lambda _: alpha_dropout,
            f"{_TF_KERAS}.layers.ThresholdedReLU": lambda _: threshold,
        }
    )
    _old_name.cache_clear()  # what was asked for until here was not for the program


def _is_spelling(fullname: str) -> bool:
    """Return whether a module that is there is asked for by another name, and not one that is gone."""
    parent = fullname.rpartition(".")[0]
    respelled = parent in sys.modules and sys.modules[parent].__name__ != parent
    return respelled or fullname.startswith(("tensorflow.", "keras._tf_keras."))


def _find(fullname: str) -> types.ModuleType | None:
    """Return the module that a spelling means, or None."""
    if fullname in OLD_MODULES:
        return _old_module(fullname)
    for root, name in ROOTS.items():
        if fullname == root or fullname.startswith(f"{root}."):
            old = name + fullname[len(root) :]
            if old in OLD_MODULES:
                return _old_module(old)
            spelled = old if fullname.startswith(_OF_KERAS) else _TF_KERAS + old.removeprefix("keras")
            return sys.modules.get(spelled) or sys.modules.get(old)
    return None


class _OldModule(types.ModuleType):
    """A module that Keras 3 does not have: its names are looked up in the tables, then in the module of today."""

    __path__: list[str]

    def __init__(self, old: str) -> None:
        super().__init__(old, f"`{old}` of old Keras; its names are in `{OLD_MODULES[old]}`.")
        self.__path__ = []  # old modules have modules in turn
        self.__package__ = old
        self.__spec__ = ModuleSpec(old, imports.AnotherName(self), is_package=True)

    def __getattr__(self, name: str) -> Any:
        today = importlib.import_module(OLD_MODULES[self.__name__])
        if name == "__all__":
            return [name for name in dir(today) if not name.startswith("_")]
        if name.startswith("__"):
            raise AttributeError(name)
        mapped(self.__name__, OLD_MODULES[self.__name__])
        try:
            return _old_name(f"{self.__name__}.{name}")
        except AttributeError:
            return getattr(today, name)

    def __dir__(self) -> list[str]:
        return self.__all__


@functools.cache
def _old_module(old: str) -> _OldModule:
    return _OldModule(old)


@functools.cache  # so that each is counted once, however often Python asks for it
def _old_name(old: str) -> Any:
    """Return what a name of old Keras means today.

    Raises:
        AttributeError: If it is in no table.
    """
    if old in OLD_NAMES:
        mapped(old, OLD_NAMES[old])
        module, _, name = OLD_NAMES[old].rpartition(".")
        return getattr(importlib.import_module(module), name)
    if old in OUT_OF_REACH:
        return _refusing(old)
    if old in OLD_MODULES:
        return importlib.import_module(old)
    module, _, name = old.rpartition(".")
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def _refusing(old: str) -> type:
    """Return a class that raises OutOfReachError when it is called or subclassed."""
    why, write = OUT_OF_REACH[old]

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise out_of_reach(what=old, why=why, write=write)

    return type(old.rpartition(".")[2], (), {"__new__": refuse, "__init_subclass__": classmethod(refuse)})


def _look_up_missing_names() -> None:
    """Make modules of Keras 3 look up in the tables what they do not have."""
    for spelled, module in list(sys.modules.items()):
        if spelled.startswith("keras.src") or not isinstance(module, types.ModuleType):
            continue
        if spelled.split(".")[0] == "keras" and not spelled.startswith("keras.backend"):  # which has its own
            patching.add(module, "__getattr__", _look_up(spelled, re.sub(f"^{_TF_KERAS}", "keras", spelled)))


def _look_up(spelled: str, old: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module.

    Args:
        spelled: The module's name.
        old: The same module's name in the tables.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807, a module's
        if name.startswith("__"):
            raise AttributeError(f"module {spelled!r} has no attribute {name!r}")
        try:
            return _old_name(f"{old}.{name}")
        except AttributeError:
            public = vars(sys.modules[old]) if old in sys.modules and not name.startswith("_") else {}
            if name in public:  # `tf.keras` lacks some names of `keras`
                return public[name]
            raise AttributeError(f"module {spelled!r} has no attribute {name!r}") from None

    return __getattr__


def _take_over_tensorflow() -> None:
    """Forget what has been imported under other spellings, so that the next import finds Keras 3.

    TensorFlow's own modules keep what they have imported from its copy of Keras 2, and parts of that copy that have
    no counterpart stay.
    """
    importlib.import_module("tensorflow")
    for name in list(sys.modules):
        if name.startswith(("tensorflow.keras", "tensorflow.python.keras")) and _find(name) is not None:
            del sys.modules[name]
    importlib.import_module("tensorflow.keras")  # which `tf.keras` is now
