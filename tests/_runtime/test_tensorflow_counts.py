import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tpu_ext import _runtime

pytestmark = pytest.mark.runtimes("keras3_tf", "keras2_tf")


def test_variables_of_a_strategy_can_be_read():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = np.ones((10, 2), "float32"), np.ones((10, 1), "float32")
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(4), verbose=0, shuffle=False)
    assert _runtime.progress.examples_seen(model) == 10
    assert _runtime.progress.train_steps(model) == 3
    assert _runtime.devices.num_replicas(model) == strategy.num_replicas_in_sync == 1
