"""Merging layers on masked inputs give what Keras 2.15 gave."""

import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.runtimes("keras3_jax")
layers = tf.keras.layers

X = np.array([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]], "float32")[..., None]
Y = np.array([[0.0, 5.0, 6.0], [4.0, 7.0, 0.0]], "float32")[..., None]


def merged(layer, second_is_masked):
    """Return the values, and which steps are left: a mask keeps an LSTM's output where it is False."""
    a, b = layers.Input((3, 1)), layers.Input((3, 1))
    output = layer()([layers.Masking()(a), layers.Masking()(b) if second_is_masked else b])
    counted = layers.SimpleRNN(
        1, kernel_initializer="zeros", recurrent_initializer="ones", bias_initializer="ones", activation="linear"
    )(output)
    values, counts = tf.keras.Model([a, b], [output, counted]).predict([X, Y], verbose=0)
    return values[..., 0], counts[:, 0]


@pytest.mark.parametrize(
    ("layer", "function"),
    [
        (layers.Multiply, np.multiply),
        (layers.Add, np.add),
        (layers.Maximum, np.maximum),
        (layers.Minimum, np.minimum),
    ],
)
@pytest.mark.parametrize(("second_is_masked", "kept"), [(False, [2, 1]), (True, [1, 1])])
def test_masks_take_no_value_and_all_count(layer, function, second_is_masked, kept):
    values, counts = merged(layer, second_is_masked)
    np.testing.assert_allclose(values, function(X, Y)[..., 0])
    np.testing.assert_allclose(counts, kept)
