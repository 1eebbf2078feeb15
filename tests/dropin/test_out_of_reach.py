"""What cannot run on JAX is named when it is reached, with the line to write; TensorFlow's own use of it goes on."""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
import keras_tpu_ext.dropin
from keras_tpu_ext.dropin import report
from keras_tpu_ext.dropin.errors import OutOfReachError

pytestmark = pytest.mark.runtimes("keras3_jax")

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
NUMBERS = np.arange(3, dtype="int64")
GENERATOR = tf.random.Generator.from_seed(1)


def model_of(kind=keras.Model):
    """Return a compiled model."""
    inputs = keras.Input((3,))
    model = kind(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    return model


class OldStep(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class OldTest(keras.Model):
    def test_step(self, data):
        return {"loss": self.compute_loss(*data, self(data[0], training=False))}


class ExactOldStep(kte.TPUModel):
    train_step = OldStep.train_step


def loop(watched=False):
    model = model_of()
    with tf.GradientTape() as tape:
        if watched:
            tape.watch(model.trainable_variables)
        loss = tf.reduce_mean((model(X) - Y) ** 2)
    return tape.gradient(loss, model.trainable_variables)


def jacobian():
    model = model_of()
    with tf.GradientTape() as tape:
        outputs = model(X)
    return tape.jacobian(outputs, model.trainable_variables)


def with_variable_of_tensorflow():
    scale = tf.Variable(2.0, name="scale")
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Lambda(lambda x: x * scale)(inputs))
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)


def table():
    rows = tf.lookup.KeyValueTensorInitializer(tf.constant(NUMBERS), tf.constant(NUMBERS * 2))
    return tf.lookup.StaticHashTable(rows, -1)


def with_generator_of_tensorflow():
    class Noisy(keras.layers.Layer):
        def call(self, x):
            return x + GENERATOR.normal((3,))

    inputs = keras.Input((3,))
    return keras.Model(inputs, Noisy()(inputs))


def strategy():
    return tf.distribute.get_strategy()


REACHED = {
    "tape.gradient": (loop, r"tape.gradient of a Keras model .*Write instead: model.compile.*docs/models.md"),
    "tape.watch": (lambda: loop(watched=True), r"tape.watch of a tensor or variable of Keras"),
    "tape.jacobian": (jacobian, r"tape.jacobian of a Keras model"),
    "train_step": (
        lambda: model_of(OldStep).fit(X, Y, verbose=0),
        r"OldStep.train_step\(self, data\).*compute_loss\(",
    ),
    "train_on_batch": (lambda: model_of(OldStep).train_on_batch(X, Y), r"OldStep.train_step\(self, data\)"),
    "test_step": (lambda: model_of(OldTest).evaluate(X, Y, verbose=0), r"OldTest.test_step\(self, data\)"),
    "TPUModel": (lambda: model_of(ExactOldStep).fit(X, Y, verbose=0), r"ExactOldStep.train_step\(self, data\)"),
    "tf.Variable": (with_variable_of_tensorflow, r"tf.Variable 'scale:0' in a model.*self.add_weight"),
    "tf.random.Generator": (
        with_generator_of_tensorflow,
        r"tf.random.Generator.normal in a model.*keras.random.SeedGenerator",
    ),
    "lookup": (lambda: table().lookup(keras.Input((3,), dtype="int64")), r"tf.lookup in a model.*dataset.map"),
    "lookup[]": (lambda: table()[keras.Input((3,), dtype="int64")], r"tf.lookup in a model"),
    "placeholder": (lambda: tf.compat.v1.placeholder(tf.float32, (2,)), r"placeholder .*tf.keras.Input\(shape\)"),
    "contrib": (lambda: tf.contrib, r"tf.contrib .* TensorFlow 1's"),
    "layers": (lambda: tf.layers.dense, r"tf.layers .*Write instead: tf.keras.layers\."),
    "estimator": (lambda: tf.estimator.Estimator, r"tf.estimator .*a tf.keras model, compile and fit"),
    "get_variable": (lambda: tf.get_variable("w", (2,)), r"tf.get_variable .*self.add_weight"),
    "run": (lambda: strategy().run(lambda: 1), r"strategy.run .*model.fit"),
    "experimental_run_v2": (lambda: strategy().experimental_run_v2(lambda: 1), r"strategy.experimental_run_v2"),
    "reduce": (lambda: strategy().reduce("SUM", 1, axis=None), r"strategy.reduce"),
    "make_dataset_iterator": (lambda: strategy().make_dataset_iterator(None), r"strategy.make_dataset_iterator"),
}


@pytest.mark.parametrize(("reach", "message"), REACHED.values(), ids=REACHED)
def test_what_cannot_be_says_what_to_write(reach, message):
    with pytest.raises(OutOfReachError, match=f"(?s){message}"):
        reach()


def test_a_plain_model_in_a_scope_says_so_too():
    with kte.strategy_scope(require="cpu", replicas=8):
        model = model_of(OldStep)
    with pytest.raises(OutOfReachError, match=r"OldStep.train_step\(self, data\)"):
        model.fit(X, Y, verbose=0)


def test_a_generator_of_tensorflow_draws_outside_of_models():
    assert GENERATOR.uniform((2,)).shape == (2,)
    data = tf.data.Dataset.from_tensors(X).map(lambda x: x + GENERATOR.normal((3,)))
    assert next(iter(data)).shape == X.shape


def test_steps_for_jax_are_left_alone():
    class Step(keras.Model):
        def train_step(self, state, data):
            self.was_called = True
            return super().train_step(state, data)

    model = model_of(Step)
    model.fit(X, Y, verbose=0)
    assert model.was_called
    model_of(kte.TPUModel).fit(X, Y, verbose=0)


def test_a_saved_model_of_tensorflow(tmp_path):
    class Doubled(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((None, 3))])
        def __call__(self, x):
            return x * 2

    tf.saved_model.save(Doubled(), str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded(tf.constant(X)), X * 2)
    data = tf.data.Dataset.from_tensors(X).map(loaded)
    np.testing.assert_array_equal(next(iter(data)), X * 2)
    with pytest.raises(OutOfReachError, match=r"tf.saved_model.load in a model"):
        loaded(keras.Input((3,)))


def test_tensorflows_own_gradients_go_on():
    variable = tf.Variable([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        constant = tf.constant(3.0)
        tape.watch(constant)
        target = tf.reduce_sum(variable**2) * constant
        vector = variable**2
    np.testing.assert_array_equal(tape.gradient(target, variable), [6, 12])
    np.testing.assert_array_equal(tape.gradient(target, constant), 5)
    np.testing.assert_array_equal(tape.jacobian(vector, variable), [[2, 0], [0, 4]])
    with tf.GradientTape() as tape:
        tape.watch(vector)
        squares = tf.reshape(vector, (1, 2)) ** 2
    assert tape.gradient(squares, vector).shape == (2,)


def test_a_gradient_that_tensorflow_does_not_see_is_told(capsys, monkeypatch):
    monkeypatch.setattr(report, "_USES", Counter())  # it is told once
    image = tf.Variable(X)
    model = model_of()
    with tf.GradientTape() as tape:
        loss = tf.constant(np.asarray(model(image))) * 1.0
    assert tape.gradient(loss, image) is None
    assert (
        "tape.gradient(...) is None -> TensorFlow's tape sees nothing of what Keras computes"
        in capsys.readouterr().out
    )


def test_tensorflows_own_tables_and_variables_go_on():
    np.testing.assert_array_equal(table().lookup(tf.constant(NUMBERS)), NUMBERS * 2)
    data = tf.data.Dataset.from_tensors(NUMBERS).map(lambda x: table().lookup(x))
    np.testing.assert_array_equal(next(iter(data)), NUMBERS * 2)
    np.testing.assert_array_equal(keras.ops.convert_to_tensor(tf.Variable(X)), X)
    with tf.Graph().as_default():
        assert tf.compat.v1.placeholder(tf.float32, (2,)).shape == (2,)


@pytest.mark.parametrize("name", ["contrib", "layers", "estimator", "no_such_name"])
def test_a_program_that_asks_before_goes_on(name):
    assert not hasattr(tf, name)
    assert getattr(tf, name, None) is None


def test_the_first_lines_of_old_programs_change_nothing(capsys):
    tf.compat.v1.disable_eager_execution()
    tf.compat.v1.disable_v2_behavior()
    import tensorflow.compat.v1 as tf1

    tf1.disable_v2_behavior()
    config = tf.ConfigProto(gpu_options=tf.GPUOptions(allow_growth=True))
    tf.compat.v1.keras.backend.set_session(tf.compat.v1.Session(config=config))
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    tf.logging.set_verbosity(tf.logging.ERROR)
    tf.get_logger().setLevel("ERROR")
    assert tf.executing_eagerly()
    assert model_of().fit(tf.data.Dataset.from_tensors((X, Y)), shuffle=False, verbose=0).history["loss"]
    printed = capsys.readouterr().out
    assert printed.count("tf.compat.v1.disable_eager_execution() -> nothing") <= 1


@pytest.mark.parametrize("seed", ["random.set_seed", "random.set_random_seed", "set_random_seed"])
def test_tensorflows_seed_is_kerass_too(seed):
    module, _, name = seed.rpartition(".")
    set_seed = getattr(getattr(tf, module) if module else tf, name)

    def drawn(seed):
        random_state, numpy_state = random.getstate(), np.random.get_state()[1].tolist()
        set_seed(seed)
        assert random.getstate() == random_state
        assert np.random.get_state()[1].tolist() == numpy_state
        dropped = keras.layers.Dropout(0.5)(np.ones((4, 4), "float32"), training=True)
        weights = keras.initializers.GlorotUniform()((2, 2))
        return np.concatenate([np.ravel(a) for a in (dropped, weights, tf.random.uniform((2,)))])

    first = drawn(3)
    np.testing.assert_array_equal(drawn(3), first)
    assert not np.array_equal(drawn(4), first)


def test_kerass_own_seed_means_what_it_did():
    def drawn():
        random.random()
        return keras.initializers.GlorotUniform().seed

    keras.utils.set_random_seed(5)
    seed = drawn()
    random.seed(5)
    random.random()
    assert seed == random.randint(1, 10**9)  # as Keras draws it


PACKAGES = ["segmentation_models", "tensorflow_hub", "tensorflow_text", "vit_keras", "transformers", "official"]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_that_is_missing_says_what_to_write(package):
    with pytest.raises(OutOfReachError, match=f"The package {package} .* it is not installed. Write instead: "):
        __import__(package)
    with pytest.raises(ImportError) as caught:
        __import__(package)
    assert caught.value.name == package
    assert importlib.util.find_spec(package) is None  # a library that asks what is there


def test_a_missing_package_of_no_table_is_pythons_matter():
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_package'") as caught:
        import no_such_package  # noqa: F401
    assert not isinstance(caught.value, OutOfReachError)


@pytest.mark.parametrize(
    ("package", "name", "other"),
    [("transformers", "TFAutoModel", "TFRecords"), ("tensorflow_hub", "KerasLayer", "load")],
)
def test_an_installed_package_keeps_what_needs_no_keras_2(package, name, other, tmp_path, monkeypatch):
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    (tmp_path / f"{package}.py").write_text(
        "class AutoTokenizer: pass\nload = KerasLayer = TFAutoModel = TFmap = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        module = importlib.import_module(package)
        assert module.AutoTokenizer
        assert module.load == module.TFmap == 1
        with pytest.raises(OutOfReachError, match=rf"{package}.{name} cannot run .* keras_hub.models"):
            exec(f"from {package} import {name}")
    finally:
        sys.modules.pop(package, None)
