"""Modules and names of old Keras, under all its spellings."""

import importlib
import importlib.util
import json
import pickle
import pkgutil
import subprocess
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest
from keras.src.legacy.preprocessing.image import ImageDataGenerator

from keras_tpu_ext.dropin import OutOfReachError, report
from keras_tpu_ext.dropin.old_keras import old_names
from keras_tpu_ext.tools.migrate.tables.old_modules import OLD_MODULES, OLD_NAMES, OUT_OF_REACH

pytestmark = pytest.mark.runtimes("keras3_jax")

REFERENCES = Path(__file__).parent / "references"
SPELLINGS = ("keras", "tensorflow.keras", "tensorflow.python.keras", "keras._tf_keras.keras")


def found(path):
    """Return what `from MODULE import NAME` gives."""
    module, _, name = path.rpartition(".")
    space = {}
    exec(f"from {module} import {name} as found", space)
    return space["found"]


def spelled(old):
    return [old] if old.startswith("keras_pre") else [s + old.removeprefix("keras") for s in SPELLINGS]


@pytest.mark.parametrize("old", OLD_MODULES)
def test_an_old_module_is_one_object_with_the_names_of_today(old):
    today = importlib.import_module(OLD_MODULES[old])
    modules = [importlib.import_module(one) for one in spelled(old) if one != OLD_MODULES[old]]
    assert len(set(map(id, modules))) == 1
    names = {
        name for name, value in vars(today).items() if name[0] != "_" and not isinstance(value, types.ModuleType)
    }
    assert names
    for name in names:
        path = OLD_NAMES.get(f"{old}.{name}", f"{today.__name__}.{name}")
        assert getattr(modules[0], name) is found(path)


@pytest.mark.parametrize("old", OLD_NAMES)
def test_an_old_name_is_the_object_of_today(old):
    if old in OLD_MODULES:  # `optimizers.adam` was a class, then a module
        assert callable(found(old)) or found(old) is importlib.import_module(old)
        return
    if "CuDNN" in old:  # arguments.py has these
        assert isinstance(found(old)(3), found(OLD_NAMES[old]))
        return
    for path in spelled(old):
        assert found(path) is found(OLD_NAMES[old]), path


@pytest.mark.parametrize("old", OUT_OF_REACH)
def test_a_name_that_cannot_be_mapped_refuses_when_it_is_used(old):
    name = found(old)
    assert all(found(path) is name for path in spelled(old))
    why, write = OUT_OF_REACH[old]
    with pytest.raises(OutOfReachError) as caught:
        name(1, of=2)
    assert f"{old} cannot run on JAX: {why}. Write instead: {write}." in str(caught.value)
    with pytest.raises(OutOfReachError):
        type("Own", (name,), {})


IMPORTS = """
from tensorflow.keras.layers.experimental import preprocessing; preprocessing.Rescaling is keras.layers.Rescaling
import tensorflow.keras.layers as L; L.Dense is keras.layers.Dense
import tensorflow as tf; tf.keras.layers.experimental.preprocessing.Rescaling is keras.layers.Rescaling
from keras.layers.core import Dense; Dense is keras.layers.Dense
from keras.layers.merge import concatenate; concatenate is keras.layers.concatenate
from keras.utils import np_utils; np_utils.to_categorical is keras.utils.to_categorical
from keras.utils.np_utils import to_categorical; to_categorical is keras.utils.to_categorical
from keras.engine.topology import Layer, Input; (Layer, Input) == (keras.Layer, keras.Input)
from keras.engine import Model; Model is keras.Model
from keras.preprocessing import text; from tensorflow.keras.preprocessing.text import *; Tokenizer is text.Tokenizer
import keras.backend.tensorflow_backend as KTF; import keras.backend as K; KTF.epsilon is K.epsilon
from tensorflow.python.keras.utils.vis_utils import plot_model; plot_model is keras.utils.plot_model
from tensorflow.python.keras import backend as K; import tensorflow as tf; K is tf.keras.backend
from tensorflow.python.keras.callbacks import Callback; Callback is keras.callbacks.Callback
from tensorflow.python.keras.layers import Dense, LSTM; (Dense, LSTM) == (keras.layers.Dense, keras.layers.LSTM)
from tensorflow.python.keras.engine.base_layer import Layer; Layer is keras.Layer
from tensorflow.python.keras.optimizer_v2.adam import Adam; Adam is keras.optimizers.Adam
import tensorflow.python.keras.losses as l; l.MSE is keras.losses.mean_squared_error
from tensorflow.optimizers import Adam; Adam is keras.optimizers.Adam
from tensorflow.compat.v1.keras.layers import Dense; Dense is keras.layers.Dense
from keras.api._v2.keras import layers; layers.Dense is keras.layers.Dense
from keras.api.layers import Dense; Dense is keras.layers.Dense
from keras.src.preprocessing.image import ImageDataGenerator as I; I is GENERATOR
from keras_preprocessing.image import ImageDataGenerator as I; I is GENERATOR
from keras.preprocessing.image import ImageDataGenerator as I; I is GENERATOR
import tensorflow as tf; tf.keras.preprocessing.image.ImageDataGenerator is GENERATOR
from keras import objectives; objectives.mse is keras.losses.mean_squared_error
import tensorflow as tf; tf.keras.experimental.CosineDecay is keras.optimizers.schedules.CosineDecay
from keras.layers.core import *; Dropout is keras.layers.Dropout
from tensorflow.keras.layers import *; AlphaDropout is keras.layers.AlphaDropout
import tensorflow as tf; import tensorflow.keras as k; k is tf.keras
import tensorflow as tf; tf.keras.losses.mean_squared_error is keras.losses.mean_squared_error
import tensorflow as tf; tf.losses.mse is keras.losses.mean_squared_error
"""


@pytest.mark.parametrize("line", IMPORTS.strip().splitlines())
def test_the_imports_of_old_programs(line):
    statements, _, expression = line.rpartition("; ")
    space = {}
    exec(statements, space)
    space |= {"keras": keras, "GENERATOR": ImageDataGenerator}
    assert eval(expression, space)


def test_old_modules_are_gone_without_the_drop_in():
    """And with it they are the only ones: the finder has nothing that Keras 3 or a package has."""
    source = f"""
import importlib, keras
for module in {[m for m in OLD_MODULES if m.startswith("keras.")]!r}:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        continue
    print(module)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert not done.stdout


def test_a_missing_name_is_an_import_error():
    with pytest.raises(ImportError, match=r"cannot import name 'Nonsense' from 'keras\.layers\.core'"):
        found("keras.layers.core.Nonsense")
    with pytest.raises(ModuleNotFoundError, match=r"keras\.layers\.core\.nonsense"):
        importlib.import_module("keras.layers.core.nonsense")
    with pytest.raises(AttributeError, match=r"module 'keras\.layers' has no attribute 'Nonsense'"):
        _ = keras.layers.Nonsense
    assert not hasattr(keras.losses, "__path_of_nothing__")
    assert importlib.util.find_spec("keras.nonsense") is None


def test_modules_can_be_reloaded_walked_and_copied():
    core = importlib.import_module("keras.layers.core")
    assert importlib.reload(core) is core
    assert importlib.import_module("tensorflow.keras.layers.core") is core
    assert importlib.reload(keras.layers).experimental is importlib.import_module("keras.layers.experimental")
    assert importlib.util.find_spec("keras.layers.core").name == "keras.layers.core"
    walked = [module.name for module in pkgutil.iter_modules(keras.__path__, "keras.")]
    assert "keras.layers" in walked
    assert "keras.engine" not in walked
    assert pickle.loads(pickle.dumps(core.Dense)) is keras.layers.Dense
    assert "Dense" in dir(core)


@pytest.mark.parametrize("root", ["keras_preprocessing", *(f"{s}.preprocessing" for s in (*SPELLINGS, "keras.src"))])
def test_a_pickled_tokenizer_of_any_age_is_read(root):
    text = importlib.import_module("tensorflow.keras.preprocessing.text")
    tokenizer = text.Tokenizer()
    tokenizer.fit_on_texts(["a b"])
    now = text.Tokenizer.__module__
    data = pickle.dumps(tokenizer, protocol=0).replace(now.encode(), f"{root}.text".encode())
    assert pickle.loads(data).texts_to_sequences(["b a"]) == [[2, 1]]


def test_tensorflow_keeps_its_own_copy():
    import tensorflow as tf

    assert tf.nn.RNNCellDropoutWrapper.__module__.startswith("tensorflow.python.keras.")
    assert list(tf.data.Dataset.range(6).map(lambda x: x + 1).batch(3).as_numpy_iterator())[1].tolist() == [4, 5, 6]
    assert tf.function(lambda x: tf.reduce_sum(x * 2))(tf.constant([1.0, 2.0])).numpy() == 6


def test_what_was_mapped_is_counted():
    found("keras.constraints.maxnorm")
    assert "keras.constraints.maxnorm" in report.summary()


@pytest.fixture(scope="module")
def reference():
    return json.loads((REFERENCES / "old_modules.json").read_text())


@pytest.fixture(scope="module")
def cases():
    sys.path.insert(0, str(REFERENCES))
    try:
        return importlib.import_module("old_modules_cases")
    finally:
        sys.path.remove(str(REFERENCES))


def assert_same(value, expected, at=""):
    if isinstance(expected, dict):
        assert value.keys() == expected.keys(), at
        for key in expected:
            assert_same(value[key], expected[key], f"{at}/{key}")
    elif isinstance(expected, list) and any(isinstance(one, (list, dict, str)) for one in expected):
        assert len(value) == len(expected), at
        for i, (one, other) in enumerate(zip(value, expected, strict=True)):
            assert_same(one, other, f"{at}/{i}")
    elif isinstance(expected, (list, float)):  # 1e-5: these are float32 in another order
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5, err_msg=at)
    else:
        assert value == expected, at


@pytest.mark.filterwarnings("ignore:Please import `affine_transform`:DeprecationWarning")  # Keras's own import
@pytest.mark.parametrize(
    "case", ["tokenizer", "sequences", "generator", "augmented", "directory", "utils", "losses", "layers"]
)
def test_numbers_are_those_of_keras_2(case, cases, reference):
    assert_same(json.loads(json.dumps(cases.listed(cases.CASES[case]()))), reference[case])


def test_sizes_of_convolutions(reference):
    for row in reference["lengths"]:
        length, size, padding, stride, dilation = row["arguments"]
        assert old_names.conv_output_length(length, size, padding, stride, dilation) == row["output"]
        assert old_names.conv_input_length(length, size, padding, stride) == row["input"]
        transposed = [
            old_names.deconv_output_length(length, size, padding, more, stride, dilation) for more in (None, 1)
        ]
        assert transposed == row["transposed"]


def test_a_model_trains_on_a_generator():
    x = np.random.default_rng(0).random((12, 4, 4, 3)).astype("float32")
    y = x.mean((1, 2, 3))
    flow = ImageDataGenerator(rescale=0.5).flow(x, y, batch_size=4, shuffle=False)
    model = keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    weights = model.get_weights()
    assert np.asarray(flow.next()[0]) == pytest.approx(x[:4] * 0.5)
    losses = model.fit(flow, epochs=2, shuffle=False, verbose=0).history["loss"]
    model.set_weights(weights)
    arrays = model.fit(x * 0.5, y, batch_size=4, shuffle=False, epochs=2, verbose=0).history["loss"]
    assert losses == pytest.approx(arrays, rel=1e-5)


def test_a_thresholded_relu_has_a_config():
    layer = found("keras.layers.ThresholdedReLU")(theta=0.5)
    assert type(layer).from_config(layer.get_config()).get_config() == layer.get_config()


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("keras.layers.local.LocallyConnected1D", "a `keras.Layer` of your own"),
        ("keras.wrappers.scikit_learn.KerasClassifier", r"keras.wrappers.SKLearnClassifier\(model\)"),
    ],
)
def test_what_no_kernel_on_a_tpu_uses_is_refused_when_it_is_made(name, write):
    refusing = found(name)
    with pytest.raises(OutOfReachError, match=f"Write instead: {write}"):
        refusing(3)


def test_functions_that_keras_3_has_not(capsys):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    assert keras.utils.multi_gpu_model(model, gpus=4) is model
    assert "multi_gpu_model(model) -> model" in capsys.readouterr().out
    lines = []
    keras.utils.print_summary(model, print_fn=lambda line, **_: lines.append(line))
    assert "dense" in "".join(lines)
    config = {"class_name": "Sequential", "config": model.get_config()}
    assert keras.models.model_from_config(config).count_params() == model.count_params()
    experimental = keras.mixed_precision.experimental
    assert experimental.LossScaleOptimizer(keras.optimizers.SGD(), "dynamic").inner_optimizer.momentum == 0
    with pytest.raises(OutOfReachError, match="loss_scale_factor="):
        experimental.LossScaleOptimizer(keras.optimizers.SGD(), 128)

    class Own(keras.layers.Layer):
        @found("keras.utils.tf_utils.shape_type_conversion")
        def compute_output_shape(self, input_shape):
            return input_shape

    assert Own().compute_output_shape([[2, 3], [4, 5]]) == [(2, 3), (4, 5)]
    with pytest.raises(OutOfReachError, match="update_step"):
        found("keras.legacy.interfaces").legacy_get_updates_support(len)
