"""How the tests of private names look for one, and name the module to mend."""

from __future__ import annotations

import importlib

import keras
import pytest

RUNTIME = "keras_tpu_ext/_runtime/"


def model():
    inputs = keras.Input((2,), name="in")
    made = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    made.compile("sgd", "mse", metrics=["mae"])
    return made


def check_import(path, module, folder=RUNTIME):
    """Fail unless `package.module:name.attribute` is there."""
    package, _, names = path.partition(":")
    try:
        thing = importlib.import_module(package)
        for name in names.split("."):
            thing = getattr(thing, name)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{path} is gone ({error}): mend {folder}{module}")
    assert thing is not None, f"{path} is None: mend {folder}{module}"


def check_attribute(name, read, module):
    """Fail unless `read` finds it on an object."""
    try:
        value = read()
    except AttributeError as error:
        pytest.fail(f"{name} is gone ({error}): mend {RUNTIME}{module}")
    assert value is not None, f"{name} is None: mend {RUNTIME}{module}"
    assert value is not False, f"{name} is gone: mend {RUNTIME}{module}"
