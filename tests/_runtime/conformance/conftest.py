"""What every runtime owes the package: each verb of the seam (`_runtime/training/protocols.py`) called once or twice.

The expectations are plain numbers and names, the same on every runtime. How steps on replicas put the verbs together
tests/models and tests/parity ask.
"""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte


@pytest.fixture(scope="session")
def rows():
    """Ten examples of two numbers, and their targets: of batches of four the last one has two."""
    x = np.arange(20, dtype="float32").reshape(10, 2) / 20
    return x, x[:, :1] + 1


def network(model_class, **options):
    """Return a compiled model of two layers with names."""
    inputs = keras.Input((2,), name="in")
    hidden = keras.layers.Dense(3, activation="relu", name="hidden")(inputs)
    model = model_class(inputs, keras.layers.Dense(1, name="out")(hidden))
    model.compile(**{"optimizer": keras.optimizers.SGD(0.1), "loss": keras.losses.MeanSquaredError()} | options)
    return model


@pytest.fixture(scope="module")
def plain():
    """A plain model that has not been trained."""
    return network(keras.Model, metrics=["mae"])


@pytest.fixture(scope="module")
def trained(rows):
    """A `TPUModel` on three replicas that scales its loss, after one epoch of three batches."""
    with kte.strategy_scope(require="cpu", replicas=3):
        model = network(kte.TPUModel, loss_scale=kte.LossScale(initial=8.0))
    model.fit(*rows, batch_size=4, shuffle=False, verbose=0)
    return model


@pytest.fixture
def make():
    """Return `network`, for a test that needs a model of its own."""
    return network
