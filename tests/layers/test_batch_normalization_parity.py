"""`check_parity` of a model with `layers.BatchNormalization`, in processes of its own."""

import numpy as np
import pytest

import keras_tpu_ext as kte

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax", "keras2_tf221")

keras = kte._runtime.keras  # also in the processes, which know nothing of the facade that tests have on Keras 2


def build():
    inputs = keras.Input((5,))
    hidden = keras.layers.Dense(6)(inputs)
    hidden = kte.layers.BatchNormalization(name="whole")(hidden)
    hidden = kte.layers.BatchNormalization(ghost_batch_size=6, name="ghosts")(keras.layers.Dense(6)(hidden))
    model = kte.TPUModel(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"], loss_scale="dynamic")
    return model


@pytest.mark.exhaustive
@pytest.mark.slow
def test_replicas_equal_one_device_and_there_is_nothing_to_say():
    rng = np.random.default_rng(7)
    batch = rng.normal(size=(43, 5)).astype("float32"), rng.normal(size=(43, 1)).astype("float32")
    report = kte.check_parity(build, batch, replicas=2, steps=2)
    assert report.ok, str(report)
    assert report.findings == ()
    assert {"non-trainable weights", "gradients", "predictions"} <= {row.quantity for row in report.rows}
