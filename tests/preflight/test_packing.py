"""A `train_step` of one's own gets from preflight what it gets from `fit`, on every runtime that lowers steps."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext.preflight._batch import batch_spec
from kind_of_keras import tensorflow_version

pytestmark = [
    pytest.mark.gate_on("keras3_jax", "keras3_tf", "keras2_tf221"),
    pytest.mark.skipif(tensorflow_version() < (2, 19), reason="it cannot write what the TPU compiler reads"),
]

X, Y = np.ones((16, 4), "float32"), np.ones((16, 4), "float32")


def dataset_of(batch):
    """Return a dataset of one batch, which `fit` gets as it is."""
    if _runtime.message_terms.framework.startswith("TensorFlow"):
        import tensorflow as tf

        return tf.data.Dataset.from_tensors(batch)

    class Dataset(_runtime.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return batch

    return Dataset()


def structure_of(data):
    if isinstance(data, dict):
        return {name: structure_of(part) for name, part in data.items()}
    if isinstance(data, (tuple, list)):
        return type(data)(structure_of(part) for part in data)
    return "array"


def recording(base):
    class Recording(base):
        """Learns to return what it gets, of which its step notes the structure."""

        def __init__(self):
            super().__init__()
            self.head, self.seen = keras.layers.Dense(4), []

        def call(self, x):
            return self.head(_runtime.tree.flatten(x)[0])

        def train_step(self, *arguments):
            *state, data = arguments
            self.seen.append(structure_of(data))
            x = _runtime.tree.flatten(data)[0]
            return super().train_step(*state, (x, x))

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **options):
            return keras.losses.MeanSquaredError(reduction="sum")(y_pred, y_pred * 0)

    model = Recording()
    model.compile("sgd")
    return model


BATCHES = {
    "x": (lambda model: model.fit(X, batch_size=16, verbose=0), X, "array"),
    "x of a dict": (lambda model: model.fit({"a": X}, batch_size=16, verbose=0), {"a": X}, None),
    "a tuple of x": (lambda model: model.fit(dataset_of((X,)), shuffle=False, verbose=0), (X,), ("array",)),
    "x and y": (lambda model: model.fit(X, Y, batch_size=16, verbose=0), (X, Y), ("array", "array")),
    "nested": (
        lambda model: model.fit({"a": X, "b": X}, {"c": Y}, batch_size=16, verbose=0),
        ({"a": X, "b": X}, {"c": Y}),
        ({"a": "array", "b": "array"}, {"c": "array"}),
    ),
    "weighted": (
        lambda model: model.fit(X, Y, sample_weight=Y[:, 0], batch_size=16, verbose=0),
        (X, Y, Y[:, 0]),
        ("array",) * 3,
    ),
}


@pytest.mark.parametrize("kind", [kte.TPUModel, keras.Model], ids=["TPUModel", "keras.Model"])
@pytest.mark.parametrize("given", BATCHES)
def test_a_step_of_ones_own_gets_what_fit_gives_it(given, kind):
    fit, batch, expected = BATCHES[given]
    trained, asked = recording(kind), recording(kind)
    fit(trained)
    opened = _runtime.devices.abstract_strategy(8)
    _runtime.probes.lower_step(asked, batch_spec(batch, "", 8, None), opened, "TPU v5 lite")
    assert asked.seen[-1] == trained.seen[-1]
    assert expected in (None, asked.seen[-1])
