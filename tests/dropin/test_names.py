"""The tables of names that `migrate` and the pages read are those of the drop-in."""

import importlib
import inspect
import operator
import re

import keras
import pytest
import tensorflow as tf
from tensorflow.python.util import tf_export

import keras_tpu_ext.dropin  # noqa: F401
from keras_tpu_ext.dropin import OutOfReachError, keras_backend
from keras_tpu_ext.dropin import out_of_reach as dropin_out_of_reach
from keras_tpu_ext.dropin.functions import TABLE, indexing
from keras_tpu_ext.dropin.tpu import Strategy
from keras_tpu_ext.tools.migrate.keras_names import moved
from keras_tpu_ext.tools.migrate.tables.backend import ANYWHERE, BACKEND
from keras_tpu_ext.tools.migrate.tables.keras_names import KERAS_NAMES
from keras_tpu_ext.tools.migrate.tables.old_arguments import ARGUMENTS
from keras_tpu_ext.tools.migrate.tables.out_of_reach import LOOPS, OF_DATA, out_of_reach
from keras_tpu_ext.tools.migrate.tables.tensorflow import TENSORFLOW, canonical_name
from keras_tpu_ext.tools.migrate.tables.tpu import STRATEGY_ATTRIBUTES, TPU

pytestmark = pytest.mark.runtimes("keras3_jax")

_MODULES = {"": tf, "math.": tf.math, "nn.": tf.nn, "linalg.": tf.linalg, "image.": tf.image}


def public(module, prefix):
    for name in dir(module):
        value = getattr(module, name)
        key = tf_export.get_canonical_name_for_symbol(value) if callable(value) else None
        if key is not None:
            yield prefix + name, key


def test_the_functions_of_tensorflow_are_those_of_the_dropin():
    ours = {name for name in TABLE if not name.startswith("keras.backend.")}
    assert set(TENSORFLOW) == ours


def test_a_function_of_tensorflow_is_found_under_all_its_names():
    wrong = {
        name: (canonical_name(name), key)
        for prefix, module in _MODULES.items()
        for name, key in public(module, prefix)
        if canonical_name(name) != (key if key in TENSORFLOW else None)
    }
    assert not wrong


def test_parameters_stand_in_tensorflows_order():
    from keras_tpu_ext.tools.migrate.templates import _forms

    wrong = {}
    for name, row in TENSORFLOW.items():
        function = tf
        for part in name.split("."):
            function = getattr(function, part)
        try:
            theirs = list(inspect.signature(function).parameters)
        except ValueError:
            continue
        for form in () if row.startswith("=") or not row else _forms(row):
            known = [one for one in form.parameters if one != "-"]
            if [theirs.index(one) if one in theirs else -1 for one in known] != [
                form.parameters.index(one) for one in known
            ]:
                wrong[name] = (form.parameters, theirs)
    assert not wrong


def test_what_stands_beside_a_function_is_there():
    rows = [*TENSORFLOW.values(), *BACKEND.values()]
    names = {one for row in rows for one in re.findall(r"(?<![\w.])([a-z]\w*)\(", row)} - {"len", "tuple"}
    names |= {row[1:] for row in rows if row.startswith("=")}
    assert not {one for one in names if not hasattr(keras.ops, one)}
    for new in ANYWHERE.values():
        assert callable(eval(new, {"keras": keras}))


def test_the_functions_of_the_backend_are_those_of_the_dropin():
    assert set(BACKEND) <= set(keras_backend.names())
    module = importlib.import_module("keras._tf_keras.keras.backend")
    assert all(callable(getattr(module, name)) for name in ANYWHERE)
    assert not (set(BACKEND) | set(keras_backend.ADDED)) & KERAS_NAMES["keras.backend"]


def test_names_that_need_keras_2_are_those_of_the_dropin():
    for package, names in dropin_out_of_reach._NEEDS_KERAS_2.items():
        name = "TFBertModel" if package == "transformers" else "KerasLayer"
        assert names.match(name)
        assert out_of_reach(f"{package}.{name}")


def test_the_names_for_tpus_are_tensorflows():
    for name in TPU:
        found = tf
        for part in name.split(".")[1:]:
            found = getattr(found, part)


def test_each_function_that_is_out_of_reach_raises():
    assert {*OF_DATA} <= {*TENSORFLOW}
    for name, write in OF_DATA.items():
        with pytest.raises(OutOfReachError, match=re.escape(write)):
            indexing.FUNCTIONS[name]()


def test_the_attributes_of_strategies_are_those_of_the_dropin():
    assert all(hasattr(Strategy(), name) for name in STRATEGY_ATTRIBUTES)
    for name in LOOPS:
        with pytest.raises(OutOfReachError):
            getattr(Strategy(), name)


@pytest.mark.parametrize(
    ("where", "old"),
    [(where, old) for where, row in ARGUMENTS.items() for old, new in row.items() if new not in "-?" and new != old],
)
def test_an_old_argument_is_taken_under_its_new_name(where, old):
    """As the drop-in does: each row that renames an argument names one that Keras 3 has."""
    new = ARGUMENTS[where][old]
    name = where.replace("optimizers.*", "optimizers.Adam").removeprefix("keras.")
    parameters = inspect.signature(operator.attrgetter(name)(keras).__init__).parameters
    assert new in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


@pytest.mark.parametrize("module", KERAS_NAMES)
def test_the_public_names_of_keras(module):
    found = importlib.import_module(module)
    missing = {name for name in KERAS_NAMES[module] if not hasattr(found, name)}
    assert not missing
    assert all(moved(f"{module}.{name}")[0] == f"{module}.{name}" for name in KERAS_NAMES[module])
