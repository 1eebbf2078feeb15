"""The packages that stand in for old ones compute what these did; references/make_addons.py wrote the numbers."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext.dropin  # noqa: F401
from dropin.references import addons_cases as cases
from keras_tpu_ext.dropin.errors import OutOfReachError

pytestmark = pytest.mark.runtimes("keras3_jax")

tfa = importlib.import_module("tensorflow_addons")  # only now: the drop-in has provided them
efn = importlib.import_module("efficientnet.tfkeras")
REFERENCES = json.loads((Path(__file__).parent / "references" / "addons.json").read_text())


def numbered(kind, table):
    """Return a test's parameters: each case with what it gave, named by its first part and its place."""
    found = REFERENCES[kind]
    assert len(found) == len(table), "run tests/dropin/references/make_addons.py"
    names = [f"{case[0]}-{i}" for i, case in enumerate(table)]
    return pytest.mark.parametrize(("case", "expected"), list(zip(table, found, strict=True)), ids=names)


def close(actual, expected, rtol=1e-5, atol=1e-6):
    """Check an array against the numbers of a reference."""
    actual = np.asarray(actual)
    np.testing.assert_allclose(actual.ravel(), np.ravel(expected), rtol=rtol, atol=atol)


@numbered("optimizers", cases.OPTIMIZERS)
def test_optimizers_take_the_steps_of_addons(case, expected):
    name, arguments = case
    variables = [keras.Variable(value, name=called) for called, value in cases.VARIABLES.items()]
    optimizer = cases.optimizer(tfa, keras.optimizers, keras.optimizers.schedules, name, arguments)
    for gradients, values in zip(cases.GRADIENTS, expected["steps"], strict=True):
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
        for variable, value in zip(variables, values, strict=True):
            close(variable, value, rtol=1e-4, atol=1e-5)
    if expected["averages"] is not None:
        optimizer.assign_average_vars(variables)
        for variable, value in zip(variables, expected["averages"], strict=True):
            close(variable, value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", cases.OPTIMIZERS[::2], ids=lambda case: case[0])
def test_an_optimizer_is_made_again_from_its_config(case):
    optimizer = cases.optimizer(tfa, keras.optimizers, keras.optimizers.schedules, *case)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()


@numbered("losses", cases.LOSSES)
def test_losses_are_those_of_addons(case, expected):
    import jax

    name, arguments, y_true, y_pred = case
    loss = getattr(tfa.losses, name)(**arguments)
    labels, x = cases.DATA[y_true], cases.DATA[y_pred]
    close(loss(labels, x), expected["value"], rtol=2e-5)
    gradient = jax.grad(lambda x: keras.ops.sum(loss(labels, x)))(x)
    close(gradient, expected["gradient"], rtol=2e-4, atol=2e-6)


@numbered("metrics", cases.METRICS)
def test_metrics_are_those_of_addons(case, expected):
    name, arguments, batches = case
    metric = getattr(tfa.metrics, name)(**arguments)
    for (y_true, y_pred, weights), value in zip(batches, expected, strict=True):
        metric.update_state(cases.DATA[y_true], cases.DATA[y_pred], None if weights is None else cases.DATA[weights])
        close(metric.result(), value)
    again = type(metric).from_config(metric.get_config())
    assert again.get_config() == metric.get_config()


@numbered("layers", cases.LAYERS)
def test_layers_are_those_of_addons(case, expected):
    import jax

    name, arguments, x, weights = case
    x = keras.ops.convert_to_tensor(cases.DATA[x])
    layer = cases.layer(tfa, keras.layers, name, arguments, x.shape)
    layer.build(x.shape)
    if weights is not None:
        cases.fill(layer)
    trainable = [v.value for v in layer.trainable_variables]
    others = [v.value for v in layer.non_trainable_variables]

    def total(x):
        outputs, changed = layer.stateless_call(trainable, others, x)
        return keras.ops.sum(outputs**2), (outputs, changed)

    (_, (outputs, changed)), gradient = jax.value_and_grad(total, has_aux=True)(x)
    close(outputs, expected["outputs"], rtol=2e-5, atol=2e-5)
    if name != "WeightNormalization":  # whose first call has a gradient through the first batch's numbers in Addons
        close(gradient, expected["gradient"], rtol=2e-4, atol=2e-4)
    again, _ = layer.stateless_call(trainable, changed, x)
    close(again, expected["again"], rtol=2e-5, atol=2e-5)
    assert tuple(layer.compute_output_shape(x.shape)) == tuple(outputs.shape)


@numbered("activations", cases.ACTIVATIONS)
def test_activations_are_those_of_addons(case, expected):
    name, arguments = case
    close(getattr(tfa.activations, name)(keras.ops.convert_to_tensor(cases.DATA["x"]), **arguments), expected)


@numbered("images", cases.IMAGES)
@pytest.mark.parametrize("inside", ["eager", "tf.data"])
def test_images_are_those_of_addons(case, expected, inside):
    name, image, arguments = case
    image = cases.DATA[image]
    if inside == "eager":
        output = getattr(tfa.image, name)(image, **arguments)
    else:
        dataset = tf.data.Dataset.from_tensors(image).map(lambda x: getattr(tfa.image, name)(x, **arguments))
        output = next(iter(dataset))
    assert output.dtype == image.dtype
    close(output, expected, atol=1e-5)


def test_weight_normalization_trains():
    model = keras.Sequential([keras.Input((6,)), tfa.layers.WeightNormalization(keras.layers.Dense(3))])
    model.compile("sgd", "mse")
    x, y = cases.DATA["features"], np.ones((2, 3), "float32")
    losses = model.fit(x, y, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("data_init", "later"), [(True, [(6, 3), (3,)]), (False, [(3,)])])
def test_weight_normalization_has_the_weights_of_addons(data_init, later):
    layer = tfa.layers.WeightNormalization(keras.layers.Dense(3), data_init=data_init)
    layer(cases.DATA["features"])
    assert [one.shape for one in layer.get_weights()] == [(3,), (6, 3), (3,), (), *later]
    assert (layer.get_weights()[0] != 1).all()  # set by the first call, outside of a step
    assert layer.get_weights()[3] == 1


def test_weight_normalization_needs_a_kernel():
    with pytest.raises(ValueError, match=r"needs a layer with a `kernel`, and lstm.* has none"):
        tfa.layers.WeightNormalization(keras.layers.LSTM(3)).build((None, 4, 5))


def test_a_model_with_addons_is_saved_and_trains(tmp_path):
    model = keras.Sequential(
        [keras.Input((6,)), tfa.layers.GroupNormalization(groups=3), keras.layers.Dense(3, activation="softmax")]
    )
    optimizer = tfa.optimizers.SWA(tfa.optimizers.Lookahead(tfa.optimizers.AdamW(1e-4, 0.05), 2), average_period=2)
    model.compile(optimizer, "categorical_crossentropy", metrics=[tfa.metrics.F1Score(3, average="macro")])
    x, y = np.repeat(cases.DATA["features"], 4, axis=0), cases.DATA["one_hot"]
    history = model.fit(x, y, epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    model.optimizer.assign_average_vars(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5)
    assert again.optimizer.get_config() == optimizer.get_config()


def test_a_weight_decay_that_reads_a_variable_of_tensorflow_is_refused():
    rate = tf.Variable(0.1)
    optimizer = tfa.optimizers.AdamW(weight_decay=lambda: 0.1 * rate)
    with pytest.raises(OutOfReachError, match=r"lambda: 1e-4 \* schedule\(optimizer.iterations\)"):
        optimizer.apply_gradients([(np.ones(1, "float32"), keras.Variable([2.0]))])


@pytest.mark.parametrize(
    ("module", "name", "write"),
    [
        ("tensorflow_addons", "seq2seq", "a class of your own"),
        ("tensorflow_addons.callbacks", "TQDMProgressBar", "verbose=1 in fit"),
        ("tensorflow_addons.layers", "SpectralNormalization", "Write instead: keras.layers.SpectralNormalization"),
        ("tensorflow_addons.layers", "CRF", "its stand-in has only GroupNormalization"),
        ("tensorflow_addons.layers", "GELU", r"keras.layers.Activation\(tfa.activations.gelu\)"),
        ("tensorflow_addons.optimizers", "MovingAverage", "use_ema=True"),
        ("tensorflow_addons.optimizers", "ConditionalGradient", "a class of your own"),
        ("efficientnet.tfkeras", "EfficientNetL2", "EfficientNetB7"),
    ],
)
def test_a_name_without_a_stand_in_says_what_to_write(module, name, write):
    with pytest.raises(OutOfReachError, match=rf"(?s){module}.{name} cannot run.*{write}"):
        getattr(importlib.import_module(module), name)


def test_names_are_imported_in_all_forms_and_told_once(capsys):
    import efficientnet
    from efficientnet.keras import EfficientNetB2
    from tensorflow_addons.layers import InstanceNormalization
    from tensorflow_addons.layers import InstanceNormalization as Again

    assert tfa.layers.InstanceNormalization is InstanceNormalization is Again
    assert EfficientNetB2 is not None
    assert efficientnet.tfkeras is efn
    assert capsys.readouterr().out.count("efficientnet.keras.EfficientNetB2 -> ") == 1
    assert not hasattr(tfa, "__wrapped__")
    assert tfa.__version__ == "0.23.0"


@pytest.mark.parametrize(
    ("number", "parameters", "last_drop"),
    [(0, 4_049_564, 0.175), pytest.param(3, 10_783_528, 0.3125, marks=pytest.mark.exhaustive)],
)
def test_efficientnets_have_the_parameters_of_the_package(number, parameters, last_drop):
    model = getattr(efn, f"EfficientNetB{number}")(weights=None, include_top=False, input_shape=(64, 64, 3))
    assert model.count_params() == parameters
    assert model.name == f"efficientnet-b{number}"
    drops = [layer.rate for layer in model.layers if layer.name.startswith("block") and layer.name.endswith("_drop")]
    assert drops[-1] == pytest.approx(last_drop)  # 0.2 * 14 / 16 and 0.2 * 25 / 16: blocks of B0 are counted


@pytest.mark.parametrize(
    "make", [efn.EfficientNetB0, tf.keras.applications.EfficientNetB0], ids=["the package", "keras.applications"]
)
def test_blocks_are_dropped_as_often_as_asked(make):
    model = make(weights=None, include_top=False, input_shape=(32, 32, 3), drop_connect_rate=0.4)
    drops = [layer.rate for layer in model.layers if layer.name.startswith("block") and layer.name.endswith("_drop")]
    assert drops[-1] == pytest.approx(0.35)  # 0.4 * 14 / 16


def test_an_efficientnet_is_kerass_without_preprocessing():
    arguments = {"weights": None, "include_top": False, "input_shape": (64, 64, 3), "pooling": "avg"}
    model, whole = efn.EfficientNetB0(**arguments), keras.applications.EfficientNetB0(**arguments)
    values = np.random.default_rng(0)
    weights = [values.random(w.shape).astype("float32") / max(np.prod(w.shape[:-1]), 1) ** 0.5 for w in model.weights]
    model.set_weights(weights)
    whole.set_weights([*whole.get_weights()[:3], *weights])
    x = values.random((2, 64, 64, 3)).astype("float32")
    expected = whole.predict(x * 255, verbose=0)
    assert np.ptp(expected) > 1e-3
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-3, atol=1e-5)


def test_an_efficientnet_reads_a_file_of_keras_2(tmp_path):
    h5py = pytest.importorskip("h5py")
    model = efn.EfficientNetB0(weights=None, input_shape=(32, 32, 3), classes=5)
    with h5py.File(tmp_path / "efficientnet-b0_noisy-student.h5", "w") as file:
        names = {"predictions": "probs"}  # the package's name of the last layer
        layers = [names.get(layer.name, layer.name) for layer in model.layers]
        file.attrs["layer_names"] = [name.encode() for name in layers]
        file.attrs["keras_version"], file.attrs["backend"] = b"2.2.4", b"tensorflow"
        for name, layer in zip(layers, model.layers, strict=True):
            group = file.create_group(name)
            group.attrs["weight_names"] = [f"{name}/{w.name}:0".encode() for w in layer.weights]
            for weight in layer.weights:
                group.create_dataset(f"{name}/{weight.name}:0", data=np.full(weight.shape, len(name) / 10, "float32"))
    path = str(tmp_path / "efficientnet-b0_noisy-student.h5")
    again = efn.EfficientNetB0(weights=path, input_shape=(32, 32, 3), classes=5)
    np.testing.assert_allclose(again.get_layer("block1a_se_reduce").get_weights()[1], 1.7)
    np.testing.assert_allclose(again.get_layer("predictions").get_weights()[0], 0.5)


def test_an_efficientnet_begins_with_the_users_tensor():
    inputs = keras.Input((64, 64, 1))
    base = efn.EfficientNetB0(
        weights=None, include_top=False, input_tensor=keras.layers.Conv2D(3, 1)(inputs), input_shape=(64, 64, 3)
    )
    assert base.inputs == [inputs]
    assert base.count_params() == 4_049_564 + 6
    assert len(base.layers) > 200


def test_preprocessing_is_imagenets():
    image = np.full((1, 2, 2, 3), 255, "uint8")
    expected = (1 - np.array([0.485, 0.456, 0.406])) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(efn.preprocess_input(image)[0, 0, 0], expected, rtol=1e-5)
    data = tf.data.Dataset.from_tensors(image).map(lambda x: efn.preprocess_input(tf.cast(x, tf.float32)))
    np.testing.assert_allclose(next(iter(data))[0, 0, 0], expected, rtol=1e-5)


def test_weights_that_cannot_be_downloaded_name_the_file(monkeypatch):
    from keras_tpu_ext.errors import KteError

    def offline(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(keras.utils, "get_file", offline)
    with pytest.raises(KteError, match=r"efficientnet-b0_noisy-student_notop.h5.*no network.*Attach a data set"):
        efn.EfficientNetB0(weights="noisy-student", include_top=False, input_shape=(32, 32, 3))
    with pytest.raises(ValueError, match=r"there is no file 'b0.h5'"):
        efn.EfficientNetB0(weights="b0.h5", include_top=False, input_shape=(32, 32, 3))


def test_the_place_of_data_is_the_folder(tmp_path, monkeypatch):
    from kaggle_datasets import KaggleDatasets

    from keras_tpu_ext.errors import KteError

    monkeypatch.setenv("KTE_INPUT", str(tmp_path))
    with pytest.raises(KteError, match=f"needs exactly one folder in {tmp_path} and found none"):
        KaggleDatasets().get_gcs_path()
    (tmp_path / "flowers").mkdir()
    (tmp_path / "flowers" / "00.tfrec").touch()
    assert KaggleDatasets().get_gcs_path() == str(tmp_path / "flowers")
    assert tf.io.gfile.glob(KaggleDatasets().get_gcs_path("flowers") + "/*.tfrec")
    (tmp_path / "competitions" / "leaves").mkdir(parents=True)
    assert KaggleDatasets().get_gcs_path("leaves") == str(tmp_path / "competitions" / "leaves")
    with pytest.raises(KteError, match=r"needs a folder 'petals' .* and found competitions, flowers"):
        KaggleDatasets().get_gcs_path("petals")
