"""How the tests of private names look for one, and name the files to mend."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path

import keras
import pytest

import keras_tpu_ext
import private_name_table as table
from kind_of_keras import RUNTIMES, VERSION, tensorflow_version

PACKAGE = Path(keras_tpu_ext.__file__).parent
TABLE = "tests/support/private_name_table.py"
TENSORFLOW = table.TENSORFLOW + (
    table.BEFORE_TENSORFLOW_2_19 if tensorflow_version() < (2, 19) else table.FROM_TENSORFLOW_2_19
)
KERAS3 = table.KERAS3 + (() if VERSION < (3, 11) else table.FROM_KERAS_3_11)
NEW_TENSORFLOW = TENSORFLOW + table.NEWER_TENSORFLOW
TABLES = {
    "keras3_tf": KERAS3 + table.KERAS3_TENSORFLOW + NEW_TENSORFLOW,
    "keras3_jax": KERAS3
    + table.KERAS3_JAX
    + (table.BEFORE_KERAS_3_10 if VERSION < (3, 10) else table.FROM_KERAS_3_10)
    + (table.BEFORE_KERAS_3_16 if VERSION < (3, 16) else table.FROM_KERAS_3_16),
    "keras2_tf215": table.KERAS2 + TENSORFLOW,
    "keras2_tf221": table.KERAS2 + NEW_TENSORFLOW,
}
NAMES = next(names for runtime, names in TABLES.items() if runtime in RUNTIMES)
IMPORTED = [name for name in NAMES if ":" in name]


def attributes(names):
    """Return those names that only an object has."""
    return {name for name in names if ":" not in name}


def model():
    inputs = keras.Input((2,), name="in")
    made = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    made.compile("sgd", "mse", metrics=["mae"])
    return made


def last(name):
    return re.split("[.:]", name)[-1]


@functools.cache
def words():
    """Return the words in each file of the package."""
    paths = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {file: set(re.findall(r"\w+", path.read_text(encoding="utf-8"))) for file, path in paths.items()}


def files(name):
    """Return the files of the package that have the last part of a name."""
    return [file for file, found in words().items() if last(name) in found]


def mend(name):
    return f"mend {', '.join(files(name))} and {TABLE}"


def check_import(path):
    """Fail unless `package.module:name.attribute` is there."""
    package, _, names = path.partition(":")
    if "keras2_tf" in RUNTIMES:
        from keras_tpu_ext._runtime.compat.keras2 import PACKAGE as KERAS

        package = re.sub("^keras", KERAS, package)
    try:
        thing = importlib.import_module(package)
        for name in names.split("."):
            try:
                thing = getattr(thing, name)
            except AttributeError:
                thing = importlib.import_module(f"{package}.{name}")
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{path} is gone ({error}): {mend(path)}")


def check_attribute(name, read):
    """Fail unless `read` finds it on an object."""
    try:
        value = read()
    except AttributeError as error:
        pytest.fail(f"{name} is gone ({error}): {mend(name)}")
    assert value is not None, f"{name} is None: {mend(name)}"
    assert value is not False, f"{name} is gone: {mend(name)}"


@functools.cache
def trees():
    """Return the package's files, by their paths from its folder on, parsed."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return [(path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]
