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


@pytest.mark.parametrize("kind", LOOKUPS)
def test_a_replica_without_examples_looks_up_nothing_unknown(scope3, kind):
    expected = outcome(contextlib.nullcontext(), kind)
    for name, values in outcome(scope3, kind).items():
        assert_close(values, expected[name], message=name)
