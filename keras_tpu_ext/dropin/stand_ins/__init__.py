"""Packages that old kernels import and that Keras 3 has not: under their names, from `migrate`'s table.

These come before an installed package of that name: it was written for Keras 2.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from keras_tpu_ext.dropin import imports, report
from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.stand_ins import tensorflow_1
from keras_tpu_ext.tools.migrate.tables.stand_ins import STAND_INS, instead

# What a package's names are here, as it is told.
_NEW = {
    "efficientnet": "the network of keras.applications without preprocessing inside: its inputs are as before",
    "kaggle_datasets": "the input folder",
    "tensorflow_addons": "the mathematics of TensorFlow Addons 0.23, on Keras 3",
}


@functools.cache
def _stand_in(name: str) -> ModuleType | None:
    """Return a module of the table, whose names are looked up there when they are used."""
    if name not in STAND_INS:
        return None
    module = ModuleType(name, "A stand-in of keras_tpu_ext.dropin.")
    vars(module).update(
        __all__=[*STAND_INS[name]],
        __path__=[],  # it has modules inside
        __spec__=ModuleSpec(name, imports.AnotherName(module), is_package=True),
        __version__="0.23.0" if name == "tensorflow_addons" else "1.1.1",
        __getattr__=_getter(name, STAND_INS[name]),
    )
    return module


def _getter(module: str, names: dict[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__`."""

    def get(name: str) -> Any:
        if f"{module}.{name}" in STAND_INS:
            return importlib.import_module(f"{module}.{name}")
        if name in names:
            report.told(f"{module}.{name}", _NEW[module.partition(".")[0]])
            return getattr(importlib.import_module(f"{__name__}.{names[name]}"), name)
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        package = module.partition(".")[0]
        raise out_of_reach(
            what=f"{module}.{name}",
            why=f"{package} is not here, and its stand-in has only {', '.join(sorted([*names, *_inside(module)]))}",
            write=instead(f"{module}.{name}"),
        )

    return get


def _inside(module: str) -> list[str]:
    """Return the names of the modules inside a module."""
    return [name.rpartition(".")[2] for name in STAND_INS if name.rpartition(".")[0] == module]


def install() -> None:
    """Provide the packages of the table under their names, and TensorFlow 1's names."""
    tensorflow_1.install()
    imports.provide(_stand_in, first=True)
