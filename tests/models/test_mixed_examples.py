"""Layers and losses that look at the examples of a batch together, on TensorFlow: the whole batch, and told."""

import contextlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from closeness import assert_close

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf", "keras2_tf215")]
TOLD = pytest.mark.filterwarnings("ignore:.* looks at the examples of a batch together:UserWarning")


class Contrasts(keras.losses.Loss):
    """Compares each example with all others, and returns a number for each."""

    def call(self, y_true, y_pred):
        rows = tf.linalg.l2_normalize(y_pred, axis=1)
        others = tf.matmul(rows, rows, transpose_b=True) * (1.0 - tf.eye(tf.shape(rows)[0]))
        return tf.reduce_logsumexp(others, axis=1) - tf.reduce_sum(rows * y_true, axis=1)


class CalledAsAWhole(keras.losses.Loss):
    """Overrides `__call__`, as some do that look at a batch as a whole."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        rows = tf.squeeze(y_pred)  # of a rank that TensorFlow does not know
        return tf.reduce_mean((rows - tf.reduce_mean(rows)) ** 2) + tf.reduce_mean((y_true - y_pred) ** 2)


class ByExample(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return tf.reduce_mean((y_true - y_pred) ** 2, axis=-1)


class Centers(keras.layers.Layer):
    def call(self, x):
        return x - tf.reduce_mean(x, axis=0, keepdims=True)


class Doubles(keras.layers.Layer):
    def call(self, x):
        return 2.0 * x


class NotANumber(keras.layers.Layer):
    """Stands for a table that made-up ids are too large for."""

    def call(self, x):
        return x * tf.constant(np.nan) + x * tf.constant(-np.inf)  # as masks of attention have it


class Scores(keras.layers.Layer):
    """Adds a loss of Keras's, which on replicas divides by their number, or refuses to."""

    def __init__(self):
        super().__init__()
        self.loss = keras.losses.BinaryCrossentropy(from_logits=True)

    def call(self, inputs):
        logits, targets, weights = inputs
        self.add_loss(self.loss(targets, logits, weights))
        return logits


class Sums(keras.layers.Layer):
    """Adds a loss that is no mean over the batch."""

    def call(self, x):
        self.add_loss(0.01 * tf.reduce_sum(x**2))
        return x


class AddsMean(keras.layers.Layer):
    def call(self, x):
        self.add_loss(0.01 * tf.reduce_mean(x**2) + 1e-3)
        return x


def model_of(layer, model_class=keras.Model):
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(4, activation="tanh")(inputs)
    return model_class(inputs, keras.layers.Dense(2)(hidden if layer is None else layer()(hidden)))


def outcome(scope, data, make, loss):
    keras.utils.set_random_seed(3)
    with scope:
        model = make()
        model.compile(keras.optimizers.SGD(0.1, clipnorm=0.5), loss(), metrics=["mae"])
    x, y = data.x, np.concatenate([data.y, -data.y], axis=1)
    options = {"batch_size": 32, "epochs": 2, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, validation_data=(x[:75], y[:75]), **options).history
    return {**history, "predicted": model.predict(x[:75], batch_size=32, verbose=0)}


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert_close(np.asarray(got[name]), np.asarray(values), message=name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", [Contrasts, CalledAsAWhole, ByExample])
def test_a_loss_of_ones_own(scope3, data, loss):
    expected = outcome(contextlib.nullcontext(), data, lambda: model_of(None), loss)
    assert_same(outcome(scope3, data, lambda: model_of(None), loss), expected)


@pytest.mark.gate_on("keras2_tf215")
@TOLD
@pytest.mark.parametrize("model_class", [keras.Model, pytest.param(kte.TPUModel, marks=pytest.mark.exhaustive)])
def test_a_layer_that_takes_a_mean_over_its_batch(scope3, data, model_class):
    expected = outcome(contextlib.nullcontext(), data, lambda: model_of(Centers), ByExample)
    assert_same(outcome(scope3, data, lambda: model_of(Centers, model_class), ByExample), expected)


@TOLD
@pytest.mark.exhaustive
@pytest.mark.parametrize("layer", [Sums, AddsMean])
def test_a_layer_that_adds_a_loss(scope3, data, layer):
    expected = outcome(contextlib.nullcontext(), data, lambda: model_of(layer), ByExample)
    assert_same(outcome(scope3, data, lambda: model_of(layer), ByExample), expected)


class AddsMeanOfOther(keras.layers.Layer):
    """Returns one input and adds the mean of another."""

    def call(self, one, other):
        self.add_loss(tf.reduce_mean(other**2))
        return one


@pytest.mark.exhaustive
@pytest.mark.parametrize("rows", [(5, 8), (2, 1), (1, 5)])  # of labelled and of unlabelled examples
def test_a_mean_over_an_input_with_another_number_of_rows(scope3, data, rows):
    first, second = rows
    specs = [tf.TensorSpec((None, columns)) for columns in (6, 6, 1)]
    parts = [(data.x[i : i + first], data.x[i + first : i + first + second], data.y[i : i + first]) for i in (0, 9)]
    batches = tf.data.Dataset.from_generator(lambda: iter(parts), output_signature=tuple(specs))
    batches = batches.map(lambda one, other, y: ((one, other), y)).apply(tf.data.experimental.assert_cardinality(2))

    def losses(scope):
        keras.utils.set_random_seed(3)
        with scope:
            inputs, dense = [keras.Input((6,)), keras.Input((6,))], keras.layers.Dense(1)
            model = keras.Model(inputs, AddsMeanOfOther()(*map(dense, inputs)))
            model.compile(keras.optimizers.SGD(0.1), "mse")
        history = model.fit(batches, epochs=2, shuffle=False, verbose=0).history
        return [*history["loss"], model.evaluate(batches, verbose=0)]

    assert_close(np.array(losses(scope3)), np.array(losses(contextlib.nullcontext())))


@pytest.mark.gate_on("keras3_tf")
def test_a_layer_that_adds_a_loss_of_keras_is_all_there_is_to_minimise(scope3, data):
    """The endpoint layer of Keras's guide to custom layers: targets are inputs, and `compile` gets no loss."""

    def outcome_of(scope):
        keras.utils.set_random_seed(3)
        with scope:
            x, y, w = keras.Input((6,)), keras.Input((1,)), keras.Input((1,))
            model = keras.Model([x, y, w], Scores()([keras.layers.Dense(1)(x), y, w]))
            model.compile(keras.optimizers.SGD(0.1, clipnorm=0.5))
        weights = np.linspace(0.0, 2.0, len(data.x), dtype="float32")[:, None]
        x = [data.x, (data.y > 0).astype("float32"), weights]
        history = model.fit(x, batch_size=32, epochs=2, shuffle=False, verbose=0).history
        return {**history, "trained": model.get_weights()[0]}

    assert_same(outcome_of(scope3), outcome_of(contextlib.nullcontext()))


@pytest.mark.gate_on("keras3_tf")
def test_it_is_told_once_with_the_layer(scope3, data):
    with scope3:
        model = model_of(Centers)
        model.compile("sgd", "mse")
    with pytest.warns(kte.errors.MixedExamplesWarning) as caught:
        model.predict(data.x, verbose=0)
    (text,) = (each.message.args[0] for each in caught if each.category is kte.errors.MixedExamplesWarning)
    assert re.fullmatch(
        f"'{model.name}' looks at the examples of a batch together .Mean in line [0-9]+ of test_mixed_examples.py., "
        "so each of the 3 replicas runs it on the whole batch: its numbers are those of one device, and so is its "
        "speed. To be faster, let its layers work on each example by itself, or take sums and means over the batch "
        "with keras_tpu_ext.batch_sum and batch_mean",
        text,
    )
    model.fit(data.x, data.y, verbose=0)  # in silence: warnings are errors here


def test_a_layer_that_works_by_example_is_left_in_parts(scope3, data):
    rows = []

    def loss():
        class Watches(ByExample):
            def call(self, y_true, y_pred):
                rows.append(y_pred.shape[0])
                return super().call(y_true, y_pred)

        return Watches()

    with scope3:
        model = model_of(Doubles)
        model.compile("sgd", loss(), run_eagerly=True)
    model.fit(data.x[:96], np.repeat(data.y[:96], 2, axis=1), batch_size=96, shuffle=False, verbose=0)
    assert rows[-1] == 32


def test_outputs_that_are_not_finite_do_not_count(scope3, data):
    with scope3:
        model = model_of(NotANumber)
        model.compile("sgd", "mse")
    model.predict(data.x, verbose=0)  # in silence: warnings are errors here
