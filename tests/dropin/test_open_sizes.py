"""TensorFlow's functions in models whose sizes are open: `Input((None, 4))`, also between layers and in a layer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext.dropin  # noqa: F401, installs what this is about
from dropin.tiers import mostly_exhaustive

pytestmark = pytest.mark.runtimes("keras3_jax")

# What is called with a batch of this shape.
FUNCTIONS = {
    "reshape": ((None, 4), lambda x: tf.reshape(x, [tf.shape(x)[0], -1, 2])),
    "reshape to a product": ((None, 4), lambda x: tf.reshape(x, [-1, tf.shape(x)[1] * 2])),
    "causal mask": ((None, 4), lambda x: tf.linalg.band_part(tf.ones((tf.shape(x)[1],) * 2), -1, 0) + x[:, :, :1]),
    "range": ((None, 4), lambda x: x[:, :, 0] + tf.cast(tf.range(tf.shape(x)[1]), tf.float32)),
    "sequence_mask": (
        (None, 4),
        lambda x: tf.sequence_mask(tf.cast(x[:, 0, 0], tf.int32), tf.shape(x)[1], "float32"),
    ),
    "attention": (
        (None, 4),
        lambda x: tf.nn.softmax(tf.matmul(x, x, transpose_b=True) / tf.sqrt(tf.cast(tf.shape(x)[-1], tf.float32))),
    ),
    "mean": ((None, 4), lambda x: tf.reduce_sum(x, 1) / tf.cast(tf.shape(x)[1], x.dtype)),
    "size": ((None, 4), lambda x: x / tf.cast(tf.size(x), tf.float32)),
    "argmax": ((None, 4), lambda x: tf.one_hot(tf.argmax(x, -1), 4)),
    "concat": ((None, 4), lambda x: tf.concat([x, tf.zeros((tf.shape(x)[0], 1, 4))], 1)),
    "tile": ((None, 4), lambda x: tf.tile(x[:, :1], [1, tf.shape(x)[1], 1])),
    "broadcast": ((None, 4), lambda x: tf.broadcast_to(x[:, :1], tf.shape(x))),
    "fill": ((None, 4), lambda x: x[:, :, 0] + tf.fill([tf.shape(x)[0], 1], 2.0)),
    "gather": ((None, 4), lambda x: tf.gather(x, tf.argmax(x, 1), axis=1, batch_dims=1)),
    "pad": ((None, 4), lambda x: tf.pad(x, [[0, 0], [1, 0], [0, 0]], "REFLECT")),
    "cumsum": ((None, 4), lambda x: tf.cumsum(x, 1, exclusive=True)),
    "slice": ((None, 4), lambda x: tf.slice(x, [0, 0, 0], [tf.shape(x)[0], 1, 2])),
    "top_k": ((None, 4), lambda x: tf.math.top_k(x, 2).values),
    "stft": ((None,), lambda x: tf.abs(tf.signal.stft(x, 4, 2))),
    "conv2d": ((None, None, 3), lambda x: tf.nn.conv2d(x, tf.ones((3, 3, 3, 4)), 2, "SAME")),
    "avg_pool": ((None, None, 3), lambda x: tf.nn.avg_pool2d(x, 2, 2, "SAME")),
    "conv2d_transpose": (
        (None, None, 3),
        lambda x: tf.nn.conv2d_transpose(x, tf.ones((2, 2, 5, 3)), [*(tf.shape(x)[:3] * [1, 2, 2]), 5], 2),
    ),
    "depth_to_space": ((None, None, 8), lambda x: tf.nn.depth_to_space(x, 2)),
    "resize": ((None, None, 3), lambda x: tf.image.resize(x, (8, 8))),
    "resize to double": ((None, None, 3), lambda x: tf.image.resize(x, tf.shape(x)[1:3] * 2)),
    "resize nearest": ((None, None, 3), lambda x: tf.image.resize(x, (8, 9), "nearest")),
    "per_image_standardization": ((None, None, 3), tf.image.per_image_standardization),
    "crop": ((None, 8, 3), lambda x: tf.image.crop_to_bounding_box(x, 0, 0, tf.shape(x)[1] - 1, 2)),
}


class Call(keras.layers.Layer):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)


def check(name, function, model, sizes):
    shape = FUNCTIONS[name][0]
    for size in sizes:
        x = np.random.default_rng(0).random((3, *(size if n is None else n for n in shape)), "float32")
        np.testing.assert_allclose(model.predict(x, verbose=0), function(tf.constant(x)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_open_sizes_between_layers(name):
    shape, function = FUNCTIONS[name]
    inputs = keras.Input(shape)
    check(name, function, keras.Model(inputs, function(inputs)), [6])


@pytest.mark.parametrize("name", mostly_exhaustive(FUNCTIONS, ["causal mask", "resize to double", "gather"]))
def test_open_sizes_in_a_layer(name):
    shape, function = FUNCTIONS[name]
    inputs = keras.Input(shape)
    check(name, function, keras.Model(inputs, Call(function)(inputs)), [6, 7])
