"""Keras's layers, losses and regularizers have TensorFlow's gradient where a function has a corner."""

import jax
import keras
import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.runtimes("keras3_jax")

X = np.array([[-1.0, 0.0, 0.0, 1.0, 2.0]], "float32")
CASES = {
    "LeakyReLU": (keras.layers.LeakyReLU(0.3), lambda x: tf.nn.leaky_relu(x, 0.3)),
    "leaky_relu": (keras.activations.leaky_relu, tf.nn.leaky_relu),
    "Maximum": (lambda x: keras.layers.Maximum()([x, abs(x)]), lambda x: tf.maximum(x, tf.abs(x))),
    "Minimum": (lambda x: keras.layers.Minimum()([x, abs(x)]), lambda x: tf.minimum(x, tf.abs(x))),
    "mae": (lambda x: keras.losses.mean_absolute_error(0 * x, x), lambda x: tf.reduce_mean(tf.abs(0 * x - x))),
    "hinge": (lambda x: keras.losses.hinge(0 * x + 1, x), lambda x: tf.reduce_mean(tf.maximum(1 - x, 0))),
    "l1": (keras.regularizers.L1(0.1), lambda x: 0.1 * tf.reduce_sum(tf.abs(x))),
}


def gradient_of_tensorflow(function):
    x = tf.Variable(X)
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(function(x))
    return tape.gradient(value, x).numpy()


@pytest.mark.parametrize("name", CASES)
def test_gradients_at_corners_are_those_of_tensorflow(name):
    ours, theirs = CASES[name]
    found = jax.grad(lambda x: keras.ops.sum(ours(x)))(keras.ops.convert_to_tensor(X))
    np.testing.assert_allclose(found, gradient_of_tensorflow(theirs), rtol=1e-6)


def test_a_program_for_keras_3_has_its_gradients(no_old_name_yet):
    gradient = jax.grad(lambda x: keras.ops.sum(keras.activations.leaky_relu(x, 0.3)))
    np.testing.assert_allclose(gradient(keras.ops.convert_to_tensor(X))[0, :3], [0.3, 1.0, 1.0], rtol=1e-6)


def test_the_length_of_a_complex_number_has_both_its_parts():
    assert float(keras.ops.abs(np.array(3 + 4j, "complex64"))) == 5.0
