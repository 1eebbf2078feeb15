"""The modules of Keras under all their names: `keras`, `tf.keras` and `tensorflow.keras` are different objects."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Mapping

from keras_tpu_ext.dropin import patching

PREFIXES = ("keras", "keras._tf_keras.keras", "tensorflow.keras")


def add_names(module: str, names: Mapping[str, object]) -> None:
    """Add names to a module of Keras, in each spelling.

    Args:
        module: Its name after `keras.`, "optimizers" for instance.
        names: The names that it lacks.
    """
    for prefix in PREFIXES:
        found = importlib.import_module(f"{prefix}.{module}" if module else prefix)
        for name, value in names.items():
            patching.add(found, name, value)


def add_module(module: str, names: Mapping[str, object], *, also: str = "") -> None:
    """Add a module to Keras in each spelling, in the place of one of this name.

    Args:
        module: Its name after `keras.`, "optimizers.legacy" for instance.
        names: What it has.
        also: Another module after `keras.`, whose names it has too.
    """
    parent, _, last = module.rpartition(".")
    for prefix in PREFIXES:
        made = types.ModuleType(f"{prefix}.{module}", f"What old Keras had in `{module}`.")
        if also:
            vars(made).update({k: v for k, v in vars(sys.modules[f"keras.{also}"]).items() if k[0] != "_"})
        vars(made).update(names)
        sys.modules[made.__name__] = made
        vars(importlib.import_module(f"{prefix}.{parent}" if parent else prefix))[last] = made
