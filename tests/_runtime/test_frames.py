"""How many frames of this package stand between a user's `fit` and his layer: they are in his tracebacks."""

import traceback

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

pytestmark = pytest.mark.runtimes("keras3_jax")


class Looking(keras.layers.Dense):
    def call(self, inputs, training=None):
        stack = traceback.extract_stack()
        self.frames = [f"{one.filename}:{one.name}" for one in stack if "/keras_tpu_ext/" in one.filename]
        return super().call(inputs)


def test_six_frames_of_ours_lead_to_a_layer():
    with kte.strategy_scope(require="cpu", replicas=2):
        layer = Looking(2)
        model = keras.Sequential([keras.Input((4,)), layer])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 4)), np.ones((8, 2)), batch_size=4, verbose=0)
    # Two more stand there in a process that has made a callback of ours which watches whole fits.
    frames = [one for one in layer.frames if "progress.py:fit" not in one and "patches.py:dispatch" not in one]
    assert len(frames) == 6, frames
