"""A model of Keras 2's `.h5` file trains on as it did there: with its optimizer's arguments and state."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.runtimes("keras3_jax")

REFERENCES = Path(__file__).parent / "references"
LOSSES = json.loads((REFERENCES / "optimizers.json").read_text())
X, Y = np.array([[1.0, 2.0], [3.0, -1.0]]), np.array([[1.0], [0.0]])


@pytest.mark.parametrize("name", LOSSES)
def test_a_loaded_model_trains_on(name):
    model = tf.keras.models.load_model(REFERENCES / "optimizers" / f"{name}.h5")
    losses = model.fit(X, Y, epochs=4, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, LOSSES[name], rtol=1e-5, atol=1e-7)


def test_a_model_of_keras_3_trains_on(tmp_path):
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(2,)), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.Adam(0.02, beta_1=0.8), "mse")
    model.fit(X, Y, epochs=3, verbose=0)
    model.save(tmp_path / "model.h5")
    expected = model.fit(X, Y, epochs=3, verbose=0).history["loss"]
    loaded = tf.keras.models.load_model(tmp_path / "model.h5")
    np.testing.assert_allclose(loaded.fit(X, Y, epochs=3, verbose=0).history["loss"], expected, rtol=1e-6)
