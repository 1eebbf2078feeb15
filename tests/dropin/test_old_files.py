"""Files under old names, files that Keras 2.15 wrote, and checkpoints that TensorFlow wrote."""

import json

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from dropin.old_keras_cases import EXPECTED, FILES, cases
from keras_tpu_ext.dropin import OutOfReachError
from keras_tpu_ext.dropin.old_keras import lambdas

pytestmark = pytest.mark.runtimes("keras3_jax")


def assert_predicts(model, name):
    np.testing.assert_allclose(model.predict(cases.MODELS[name][1], verbose=0), EXPECTED["files"][name], rtol=1e-4)


def emptied(name):
    model = cases.MODELS[name][0]()
    model.set_weights([np.zeros_like(w) for w in model.get_weights()])
    return model


@pytest.mark.parametrize("name", cases.MODELS)
@pytest.mark.parametrize("by_name", [False, True])
def test_weights_of_keras_2(name, by_name):
    model = emptied(name)
    model.load_weights(str(FILES / f"{name}_weights.h5"), by_name=by_name)
    assert_predicts(model, name)


@pytest.mark.parametrize("name", cases.MODELS)
def test_weights_of_a_whole_model_of_keras_2(name):
    model = emptied(name)
    model.load_weights(str(FILES / f"{name}_model.h5"))
    assert_predicts(model, name)


@pytest.mark.parametrize("name", cases.MODELS)
def test_whole_model_of_keras_2(name):
    model = tf.keras.models.load_model(str(FILES / f"{name}_model.h5"))
    assert_predicts(model, name)
    assert isinstance(model.optimizer, keras.optimizers.Adam)
    assert model.optimizer.get_config()["decay"] == pytest.approx(0.1)
    keras.models.load_model(str(FILES / f"{name}_model.h5"), compile=False)


@pytest.mark.parametrize("name", cases.MODELS)
def test_checkpoint_of_tensorflow(name):
    model = emptied(name)
    model.load_weights(str(FILES / f"{name}_checkpoint")).expect_partial()
    assert_predicts(model, name)


def test_checkpoint_of_another_model_is_refused():
    model = cases.small_model()
    before = model.get_weights()
    with pytest.raises(
        OutOfReachError, match=r"has no value for .*kernel.* Write instead: the weights in a \.h5 file"
    ):
        model.load_weights(str(FILES / "conv_checkpoint"))
    np.testing.assert_array_equal(model.get_weights()[0], before[0])


@pytest.mark.parametrize(
    "file", ["w.h5", "w.hdf5", "folder/w.h5", "w.weights.h5", "w", "ckpt/w_03", "w.ckpt", "w.tf"]
)
def test_weights_under_any_name(file, tmp_path):
    model = cases.conv_model()
    model.save_weights(str(tmp_path / file))
    again = emptied("conv")
    again.load_weights(str(tmp_path / file))
    for found, expected in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_latest_checkpoint_is_found(tmp_path):
    model = cases.small_model()
    model.save_weights(tmp_path / f"cp-{1:04d}.ckpt")
    model.save_weights(tmp_path / f"cp-{2:04d}.ckpt")
    latest = tf.train.latest_checkpoint(str(tmp_path))
    assert latest == str(tmp_path / "cp-0002.ckpt")
    model.load_weights(latest).assert_consumed()


@pytest.mark.parametrize("file", ["m.h5", "m.hdf5", "m.keras", "folder/m", "m.tf"])
@pytest.mark.parametrize("way", ["method", "function"])
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer:UserWarning")  # it has not trained
def test_models_under_any_name(file, way, tmp_path):
    model = cases.conv_model()
    model.compile("adam", "mse")
    path = str(tmp_path / file)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    if way == "method":
        model.save(path, include_optimizer=False)
    else:
        tf.keras.models.save_model(model, path)
    again = tf.keras.models.load_model(path)
    assert_predicts(again, "conv")


def test_format_is_said(tmp_path):
    model = cases.conv_model()
    model.save(str(tmp_path / "a"), save_format="h5")
    model.save(str(tmp_path / "b"), save_format="tf", save_traces=False)
    assert h5py.is_hdf5(tmp_path / "a")
    assert (tmp_path / "b").is_dir()
    assert_predicts(keras.models.load_model(str(tmp_path / "a")), "conv")
    assert_predicts(keras.saving.load_model(tmp_path / "b"), "conv")


def test_skip_mismatch(tmp_path):
    cases.small_model(units=2).save_weights(str(tmp_path / "w.h5"))
    model = cases.small_model()
    with pytest.raises(ValueError, match="Shape mismatch"):
        model.load_weights(str(tmp_path / "w.h5"))


def test_by_name_is_never_ignored(tmp_path):
    """Files of Keras 3 and checkpoints are read by their structure only."""
    model = cases.conv_model()
    model.save_weights(str(tmp_path / "w.weights.h5"))
    for path in (tmp_path / "w.weights.h5", FILES / "conv_checkpoint"):
        with pytest.raises(ValueError, match="by_name"):
            model.load_weights(str(path), by_name=True)


def test_the_second_argument_of_load_weights_is_told(tmp_path, capsys):
    model = cases.conv_model()
    model.save_weights(str(tmp_path / "w.h5"))
    model.load_weights(str(tmp_path / "w.h5"), True)
    assert "before Keras 2.12 it was by_name=True" in capsys.readouterr().out


@pytest.mark.parametrize("file", ["w.h5", "w"])
def test_a_file_is_not_overwritten_without_being_asked(file, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("keras.src.utils.io_utils.ask_to_proceed_with_overwrite", asked.append)  # no
    model = cases.small_model()
    model.save_weights(str(tmp_path / file), overwrite=False)
    emptied_model = cases.small_model()
    emptied_model.set_weights([np.zeros_like(w) for w in model.get_weights()])
    emptied_model.save_weights(str(tmp_path / file), overwrite=False)
    assert len(asked) == 1
    emptied_model.load_weights(str(tmp_path / file))
    np.testing.assert_array_equal(emptied_model.get_weights()[0], model.get_weights()[0])


def test_json():
    model = cases.conv_model()
    again = tf.keras.models.model_from_json(model.to_json())
    again.set_weights(model.get_weights())
    assert_predicts(again, "conv")
    assert json.loads(model.to_json())["class_name"] == "Functional"


@pytest.mark.parametrize("ending", [".h5", ".keras"])
def test_a_layer_that_keras_3_has_not(ending, tmp_path):
    model = tf.keras.Sequential([keras.Input((4, 3)), keras.layers.ThresholdedReLU(theta=0.1)])
    model.save(str(tmp_path / f"m{ending}"))
    x = np.random.default_rng(0).normal(size=(2, 4, 3))
    again = tf.keras.models.load_model(str(tmp_path / f"m{ending}"))
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-6)


def test_json_of_a_model_with_its_own_loss():
    def own(y_true, y_pred):
        return tf.reduce_mean(y_pred - y_true)

    model = cases.conv_model()
    model.compile("sgd", own)
    again = tf.keras.models.model_from_json(model.to_json())
    again.set_weights(model.get_weights())
    assert_predicts(again, "conv")
    with pytest.raises(ValueError, match="call `compile"):
        again.evaluate(np.ones((1, *model.input_shape[1:])), verbose=0)
    config = json.loads(model.to_json())
    del config["compile_config"]
    config["class_name"], config["module"], config["registered_name"] = "Nothing", None, "Nothing"
    with pytest.raises(TypeError, match="Could not locate class 'Nothing'"):
        tf.keras.models.model_from_json(json.dumps(config))


def test_saved_model_is_out_of_reach(tmp_path):
    tf.saved_model.save(tf.Module(), str(tmp_path / "m"))
    with pytest.raises(OutOfReachError, match="a SavedModel is a TensorFlow graph"):
        tf.keras.models.load_model(str(tmp_path / "m"))


def test_code_in_a_file_is_not_run(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Lambda(lambda x: x * 2)])
    model.save(str(tmp_path / "m.h5"))
    lambdas._SAVED.clear()  # as in another program
    with pytest.raises(ValueError, match="safe_mode=False"):
        keras.models.load_model(str(tmp_path / "m.h5"))


@pytest.mark.parametrize(
    ("file", "weights_only"),
    [("best.h5", False), ("best.hdf5", False), ("best", False), ("w.h5", True), ("w.hdf5", True), ("w", True)],
)
def test_checkpoint_callback_under_any_name(file, weights_only, tmp_path):
    model = cases.small_model()
    model.compile("sgd", "mse", metrics=["mae"])
    path = str(tmp_path / file)
    callback = tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=weights_only, options=None, period=1)
    model.fit(cases.values(8, 4), cases.values(8, 1), epochs=1, verbose=0, callbacks=[callback])
    if weights_only:
        again = cases.small_model()
        again.load_weights(path)
    else:
        again = tf.keras.models.load_model(path)
    np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])


def dice(y_true, y_pred):
    return 1 - tf.reduce_mean(y_true * y_pred)


@pytest.mark.parametrize("ending", ["h5", "keras"])
def test_own_losses_and_metrics(ending, tmp_path):
    model = cases.small_model()
    model.compile(tf.keras.optimizers.Adam(lr=1e-3), loss=dice, metrics=[dice, "mae"])
    model.fit(cases.values(8, 4), cases.values(8, 1), verbose=0)
    path = str(tmp_path / f"m.{ending}")
    model.save(path)
    again = tf.keras.models.load_model(path, custom_objects={"dice": dice})
    x, y = cases.values(8, 4), cases.values(8, 1)
    np.testing.assert_allclose(again.evaluate(x, y, verbose=0), model.evaluate(x, y, verbose=0), rtol=1e-5)
    assert again.metrics_names == ["loss", "dice", "mae"]
    if ending == "h5":
        with pytest.raises(
            ValueError, match=r"which Keras 2 did not have: write load_model\(\.\.\., custom_objects="
        ):
            tf.keras.models.load_model(path)


def test_weights_of_a_model_without_weights_say_so(tmp_path):
    model = tf.keras.Sequential([tf.keras.layers.Dense(2)], name="mine")
    for method in (model.save_weights, model.load_weights):
        with pytest.raises(ValueError, match=r"mine has no weights yet: .*mine\.build"):
            method(str(tmp_path / "w.h5"))


@pytest.mark.parametrize("name", ["m.h5", "m.keras"])
def test_lambdas_that_this_program_has_saved(tmp_path, name):
    inputs = tf.keras.layers.Input((4,))
    parts = [tf.keras.layers.Lambda(lambda x, i=i: x[:, i : i + 1] * (i + 1))(inputs) for i in range(2)]
    scale = 3.0
    parts.append(tf.keras.layers.Lambda(lambda x: x * scale)(inputs))
    model = tf.keras.Model(inputs, tf.keras.layers.Concatenate()(parts))
    model.save(tmp_path / name)
    x = np.arange(8.0).reshape(2, 4)
    loaded = tf.keras.models.load_model(tmp_path / name, compile=False)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


@pytest.mark.parametrize("activation", [tf.nn.swish, tf.nn.relu, tf.nn.leaky_relu], ids=["swish", "relu", "leaky"])
def test_functions_of_tensorflow_as_activations(activation, tmp_path):
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, activation=activation, input_shape=(4,))])
    model.save(tmp_path / "m.h5")
    again = tf.keras.models.load_model(tmp_path / "m.h5", compile=False)
    x = cases.values(8, 4)
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-6)


def test_a_loaded_model_knows_the_names_of_what_it_returns(tmp_path):
    inputs = tf.keras.Input((4,))
    outputs = [tf.keras.layers.Dense(n, name=name, activation="softmax")(inputs) for n, name in ((2, "a"), (3, "b"))]
    model = tf.keras.Model(inputs, outputs)
    model.compile("sgd", ["mse", "sparse_categorical_crossentropy"], metrics={"b": ["accuracy"]})
    targets = [cases.values(8, 2), np.arange(8)[:, None] % 3]
    model.save(tmp_path / "m.h5")
    assert model.metrics_names == []
    again = tf.keras.models.load_model(tmp_path / "m.h5")
    names = ["loss", "a_loss", "b_loss", "b_accuracy"]
    assert again.metrics_names == names
    found = again.evaluate(cases.values(8, 4), targets, verbose=0)
    assert again.metrics_names == names
    np.testing.assert_allclose(found, model.evaluate(cases.values(8, 4), targets, verbose=0), rtol=1e-5)
