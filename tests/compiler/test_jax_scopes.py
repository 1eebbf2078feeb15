"""A model that was made for rehearsed replicas is asked about as any other."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

pytestmark = pytest.mark.runtimes("keras3_jax")


@pytest.mark.parametrize("exact", [True, False])
def test_a_model_of_a_rehearsal(exact, tmp_path):
    inputs = keras.Input((256,))
    with kte.strategy_scope(require="cpu", replicas=8):
        kind = kte.TPUModel if exact else keras.Model
        model = kind(inputs, keras.layers.Dense(256)(inputs), name="rehearsed")
        model.compile("adam", "mse")
    data = np.zeros((64, 256), "float32"), np.zeros((64, 256), "float32")
    report = kte.preflight(model, data, "v5e-4", cache_dir=tmp_path, progress=False)
    assert report.ok, str(report)
    assert report.devices == 4
    assert model.fit(*data, batch_size=16, verbose=0).history["loss"] == [0.0]
