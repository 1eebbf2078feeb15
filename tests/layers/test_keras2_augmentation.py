"""Augmentation of data of which Keras 2 does not know the shape."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
import plain_augmentation as plain
import sources

pytestmark = pytest.mark.runtimes("keras2_tf")

L = kte.layers
IMAGES, CLASSES = plain.digits(16)


@pytest.mark.parametrize(
    "layer_class",
    [
        pytest.param(L.RandomFlipCrop, marks=pytest.mark.gate_on("keras2_tf215")),
        pytest.param(L.RandomAffine, marks=pytest.mark.exhaustive),
        pytest.param(L.RandomErasing, marks=pytest.mark.gate_on("keras2_tf221")),
    ],
)
def test_a_layer_that_is_built_takes_images_of_unknown_rank(layer_class):
    layer, same = layer_class(seed=1), layer_class(seed=1)
    layer.build((None, 8, 8, 1))
    traced = tf.function(lambda x: layer(x, training=True), input_signature=[tf.TensorSpec(None, tf.float32)])
    np.testing.assert_array_equal(traced(IMAGES), same(IMAGES, training=True))


def test_augment_knows_the_shape_of_what_a_sequence_gives_from_the_model():
    class Turned(kte.TPUModel):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.turn = L.RandomAffine(seed=1)

        def augment(self, x, y):
            return self.turn(x, training=True), y

    inputs = keras.Input((8, 8, 1))
    model = Turned(inputs, keras.layers.Dense(10)(keras.layers.Flatten()(inputs)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(sources.Batches(sources.cut((IMAGES, CLASSES), 8)), verbose=0)
    assert int(model.turn.calls) == 2
