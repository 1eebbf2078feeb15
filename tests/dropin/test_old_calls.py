"""Layers and subclassed models are called and built as in Keras 2."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.keras import layers

from keras_tpu_ext.dropin import OutOfReachError

pytestmark = pytest.mark.runtimes("keras3_jax")


class Block(layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x, training, mask):
        x = self.dense(x)
        x = x if mask is None else x * tf.cast(mask, x.dtype)
        return x + 100.0 if training else x


class Model(tf.keras.Model):
    def __init__(self, mask=None):
        super().__init__()
        self.block, self.given = Block(), mask

    def call(self, x, training):
        return self.block(x, training, self.given)


X = np.ones((2, 4), "float32")


@pytest.mark.parametrize("mask", [None, np.array([[1.0], [0.0]], "float32")])
def test_training_and_mask_by_position_and_without_defaults(mask):
    model = Model(mask)
    plain = model(X)
    model.block.dense.set_weights([np.ones((4, 3)), np.zeros(3)])
    expected = np.full((2, 3), 4.0) * (1.0 if mask is None else mask)
    assert plain.shape == (2, 3)
    np.testing.assert_allclose(model(X), expected)
    np.testing.assert_allclose(model(X, True), expected + 100.0)
    np.testing.assert_allclose(model(X, training=True), expected + 100.0)
    np.testing.assert_allclose(model(X, False), expected)


def test_fit_calls_with_training_and_predict_without():
    model = Model()
    model.build((None, 4))
    model.block.dense.set_weights([np.ones((4, 3)), np.zeros(3)])
    model.compile("sgd", "mae")
    assert model.fit(X, np.zeros((2, 3)), verbose=0).history["loss"] == pytest.approx([104.0])
    assert model.predict(X, verbose=0).max() < 5.0


def test_a_model_of_layers_in_functional_style():
    inputs = layers.Input((4,))
    model = tf.keras.Model(inputs, Block()(inputs, mask=None))
    assert model.predict(X, verbose=0).shape == (2, 3)


@pytest.mark.parametrize("shape", [(None, 4), [None, 4], (2, 4), tf.TensorShape([None, 4])])
def test_build_makes_the_weights_of_a_subclassed_model(shape):
    model = Model()
    model.build(shape)
    assert [w.shape for w in model.get_weights()] == [(4, 3), (3,)]


def test_build_takes_several_shapes():
    class Two(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = layers.Dense(2), layers.Dense(2)

        def call(self, inputs):
            return self.a(inputs[0]) + self.b(inputs[1])

    model = Two()
    model.build([(None, 3), (None, 5)])
    assert [w.shape for w in model.get_weights()] == [(3, 2), (2,), (5, 2), (2,)]


def test_another_argument_that_is_missing_is_told():
    class Needs(layers.Layer):
        def call(self, x, other):
            return x + other

    with pytest.raises(TypeError, match="other"):
        Needs()(X)


class Halved(layers.Layer):
    def call(self, x):
        if tf.rank(x) == 1:
            x = x[None]
        return tf.where(tf.math.is_nan(x), 0.0, x) / 2


class Weighted(layers.Layer):
    def build(self, shape):
        self.w = self.add_weight(name="w", shape=shape[-1:])

    def call(self, x):
        return x * self.w


def test_a_layer_without_weights_computes_in_a_pipeline_too():
    halved, data = Halved(), tf.data.Dataset.from_tensors(np.array([2.0, np.nan], "float32"))
    np.testing.assert_array_equal(next(iter(data.map(halved))), [[1.0, 0.0]])
    np.testing.assert_array_equal(halved(np.array([[4.0]], "float32")), [[2.0]])


def test_a_layer_with_weights_in_a_pipeline_is_told():
    with pytest.raises(OutOfReachError, match=r"in tf\.data's map, cannot run on JAX"):
        tf.data.Dataset.from_tensors(X).map(Weighted())
