"""What is TensorFlow's own about `DeviceNormalization`: datasets without an end."""

import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from keras_tpu_ext.errors import ArgumentError

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")]


def test_a_dataset_without_an_end_needs_steps():
    images = np.arange(12, dtype="uint8").reshape(4, 3)
    dataset = tf.data.Dataset.from_tensor_slices(images).batch(2).repeat()
    layer = kte.layers.DeviceNormalization()
    with pytest.raises(
        ArgumentError, match=r"must be finite; got infinite data. Write layer.adapt\(data, steps=100\)"
    ):
        layer.adapt(dataset)
    layer.adapt(dataset, steps=4)
    np.testing.assert_array_equal(layer.get_weights()[0], images.mean(0))
