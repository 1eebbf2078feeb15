"""Files of models that name what is no part of a model: it is refused, and neither imported nor called."""

import base64
import json
import marshal
import os
import subprocess
import sys
import zipfile

import h5py
import keras
import pytest

from keras_tpu_ext.dropin.old_keras import lambdas

pytestmark = pytest.mark.runtimes("keras3_jax")

NAMES = [
    "os.system",
    "sys.exit",
    "subprocess.Popen",
    "builtins.eval",
    "canary.run",
    "canary.Run",
    "keras.utils.get_file",
    "keras.utils.data_utils.get_file",
    "keras.utils.generic_utils.func_load",
    "keras.utils.np_utils.os",
    "keras.engine.saving.importlib",
    "keras.wrappers.scikit_learn.KerasClassifier",
    "keras.legacy.interfaces.out_of_reach",
    "keras._tf_keras.keras.utils.get_file",
    "keras.api._v2.keras.utils.get_file",
    "tensorflow.keras.utils.get_file",
    "tensorflow.python.keras.utils.data_utils.get_file",
    "efficientnet.tfkeras.EfficientNetB0",
    "kaggle_datasets.KaggleDatasets",
    "keras_tpu_ext.dropin.old_keras.modules.importlib",
]
# What the registered name of an object says: nothing, the name itself, as Keras 2 did, and a class of the drop-in.
REGISTERED = [None, "{}", "Custom>{}", "keras_tpu_ext.dropin>TensorFlowFunction"]


def config_of(module, cls, config, registered=None):
    return {"module": module, "class_name": cls, "config": config, "registered_name": registered}


def layer_of(name, registered):
    """Return the config of a layer that is a name; the drop-in's class finds functions in a table of its own."""
    module, _, last = name.rpartition(".")
    config = {"function": name} if registered == REGISTERED[-1] else {"name": "evil", "command": "true"}
    return config_of(module, last, config, registered and registered.format(last))


def layer_with(name, argument):
    """Return the config of a layer whose argument is a function of this name."""
    module, _, last = name.rpartition(".")
    function = config_of(module, "function", last, last)
    if argument == "activation":
        return config_of("keras.layers", "Dense", {"name": "evil", "units": 1, "activation": function})
    return config_of("keras.layers", "Lambda", {"name": "evil", "function": function, "arguments": {}})


def model_of(layer):
    start = config_of("keras.layers", "InputLayer", {"batch_shape": [None, 2], "dtype": "float32", "name": "start"})
    return config_of("keras", "Sequential", {"name": "model", "layers": [start, layer]})


def saved(path):
    keras.Sequential([keras.Input((2,)), keras.layers.Flatten()]).save(path)
    return path


def keras_file(layer, folder):
    with zipfile.ZipFile(saved(folder / "good.keras")) as good, zipfile.ZipFile(folder / "m.keras", "w") as file:
        for name in good.namelist():
            file.writestr(name, json.dumps(model_of(layer)) if name == "config.json" else good.read(name))
    return keras.models.load_model(folder / "m.keras")


def hdf5_file(layer, folder):
    with h5py.File(saved(folder / "m.h5"), "r+") as file:
        file.attrs["model_config"] = json.dumps(model_of(layer))
    return keras.models.load_model(folder / "m.h5")


READERS = {
    "keras": keras_file,
    "hdf5": hdf5_file,
    "json": lambda layer, _: keras.models.model_from_json(json.dumps(model_of(layer))),
    "config": lambda layer, _: keras.Sequential.from_config(model_of(layer)["config"]),
    "layer": lambda layer, _: keras.layers.deserialize(layer),
}
in_all_files = pytest.mark.parametrize("reader", READERS)


def known_lambda():
    """Return the config of a lambda that this program has saved."""
    return keras.layers.Lambda(lambda x: x).get_config()["function"]


@pytest.fixture
def refused(monkeypatch, tmp_path):
    """Read a layer from a file, which must fail; afterwards nothing of what it names was imported or called."""
    called = []
    for owner, name in ((os, "system"), (sys, "exit"), (subprocess, "Popen"), (keras.utils, "get_file")):
        monkeypatch.setattr(owner, name, lambda *args, **kwargs: called.append(args))
    (tmp_path / "canary.py").write_text("def run(*args, **kwargs): ...\nclass Run: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    for read in READERS.values():  # each reads what is a layer, and imports what it needs
        assert read(config_of("keras.layers", "Flatten", {"name": "good"}), tmp_path).name in ("good", "model")
    known_lambda()
    before = set(sys.modules)

    def check(reader, layer):
        with pytest.raises((ValueError, TypeError)):
            READERS[reader](layer, tmp_path)

    yield check
    # Keras looks for a class in modules of its own, of today and old; an old one is a module without code.
    assert {name for name in set(sys.modules) - before if not name.startswith("keras.")} == set()
    assert called == []


@in_all_files
@pytest.mark.parametrize("registered", REGISTERED)
def test_a_layer_is_no_other_thing(registered, reader, refused):
    for name in NAMES:
        refused(reader, layer_of(name, registered))


@in_all_files
@pytest.mark.parametrize("argument", ["activation", "function"])
def test_an_argument_is_no_function_of_elsewhere(argument, reader, refused):
    for name in NAMES:
        refused(reader, layer_with(name, argument))


@in_all_files
@pytest.mark.parametrize("saved", [False, True])
def test_code_is_not_run(saved, reader, refused):
    """Also where this program has saved a lambda: the file's is another one, or stands beside it."""
    known = known_lambda()
    if not saved:
        lambdas._SAVED.clear()
    code = compile("__import__('os').system('true')", "file", "eval")
    text = base64.b64encode(marshal.dumps(code)).decode()
    evil = {"class_name": "__lambda__", "config": {"code": text, "defaults": None, "closure": None}}
    for function, others in (
        (evil, {}),
        ([text, None, None], {"function_type": "lambda"}),
        (known, {"output_shape": evil}),
        (known, {"arguments": {"of": evil}}),
        (known if saved else evil, {"arguments": {"of": [evil]}, "mask": evil}),
    ):
        config = {"name": "evil", "function": function, "arguments": {}, **others}
        refused(reader, config_of("keras.layers", "Lambda", config))
