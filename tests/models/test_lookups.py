"""Layers that look up words and numbers, and know those of the data alone."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from closeness import assert_close

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf", "keras2_tf215")]
LOOKUPS = {
    "text": (keras.layers.StringLookup, "string", ["red", "green", "blue"]),
    "numbers": (keras.layers.IntegerLookup, "int64", [30, 40, 50]),
}


def outcome(scope, kind):
    lookup, dtype, values = LOOKUPS[kind]
    with scope:
        keras.utils.set_random_seed(3)
        inputs = keras.Input((2,), dtype=dtype)
        ids = lookup(vocabulary=values, num_oov_indices=0)(inputs)
        outputs = keras.layers.Dense(1)(keras.layers.Flatten()(keras.layers.Embedding(3, 4)(ids)))
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.Adam(0.1), "mse")
    rows = np.random.default_rng(0).integers(0, 3, size=(17, 2))
    x, y = tf.constant(np.array(values)[rows]), rows[:, :1].astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)  # the last batch has one example
    losses = model.fit(data, epochs=2, validation_data=data, shuffle=False, verbose=0).history
    one = model.predict(x[:1], verbose=0)  # the first that is predicted: sizes are static, and uneven
    return {**losses, "one": one, "predicted": model.predict(data, verbose=0)}


@pytest.mark.gate_on("keras2_tf215")
@pytest.mark.parametrize("kind", ["text", pytest.param("numbers", marks=pytest.mark.exhaustive)])
def test_a_replica_without_examples_looks_up_nothing_unknown(scope3, kind):
    expected = outcome(contextlib.nullcontext(), kind)
    for name, values in outcome(scope3, kind).items():
        assert_close(values, expected[name], message=name)


class Positions(keras.layers.Layer):
    """Looks up the same rows for every batch, one of them twice."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(5, 3)

    def call(self, x):
        return x + self.table(tf.constant([0, 1, 1, 4]))


def train(scope, batches, eagerly):
    with scope:
        keras.utils.set_random_seed(3)
        inputs = keras.Input((4,), dtype="int32")
        hidden = Positions()(keras.layers.Embedding(9, 3)(inputs))
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(hidden)))
        model.compile(keras.optimizers.Adam(0.1, clipnorm=0.5), "mse", run_eagerly=eagerly)
    history = model.fit(batches, epochs=2, shuffle=False, verbose=0).history
    return [history["loss"], *model.get_weights()]


@pytest.mark.gate_on("keras3_tf")
@pytest.mark.parametrize(
    "case", ["any size", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("static", "eager"))]
)
def test_what_is_looked_up_once_a_batch_is_so_on_replicas(scope3, case):
    rng = np.random.default_rng(0)
    data = tf.data.Dataset.from_tensor_slices(
        (rng.integers(0, 9, (25, 4)).astype("int32"), rng.normal(size=(25, 1)).astype("float32"))
    )
    batches = data.batch(12, drop_remainder=case == "static")  # else one batch leaves replicas empty
    expected = train(contextlib.nullcontext(), batches, case == "eager")
    for got, values in zip(train(scope3, batches, case == "eager"), expected, strict=True):
        assert_close(got, values)


@pytest.mark.exhaustive
def test_positions_that_are_trained_later_are_looked_up_once_a_batch_too(scope3):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 9, (24, 4)).astype("int32"), rng.normal(size=(24, 1)).astype("float32")
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(12, drop_remainder=True)

    def weights(block):
        with block:
            keras.utils.set_random_seed(3)
            inputs, positions = keras.Input((4,), dtype="int32"), Positions()
            hidden = positions(Positions()(keras.layers.Embedding(9, 3)(inputs)))
            model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(hidden)))
            for trainable in (False, True):
                positions.trainable = trainable
                model.compile(keras.optimizers.Adam(0.1), "mse")
                model.fit(batches, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    for got, expected in zip(weights(scope3), weights(contextlib.nullcontext()), strict=True):
        assert_close(got, expected)
