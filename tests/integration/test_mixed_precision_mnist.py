"""Mixed precision on real handwritten digits, on eight rehearsed replicas."""

from __future__ import annotations

import gzip

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

BATCH = 100  # 12 or 13 examples a replica: it does not divide by eight
EPOCHS = 4


@pytest.fixture(scope="module")
def digits(request):
    """Train and test images as rows of numbers from 0 to 1, with labels; a fifth is for the test."""
    try:
        folder = request.getfixturevalue("shared_data")
        with gzip.open(folder / "mnist-t10k-images-idx3-ubyte.gz") as images:
            x = np.frombuffer(images.read(), np.uint8, offset=16).reshape(-1, 784) / np.float32(255)
        with gzip.open(folder / "mnist-t10k-labels-idx1-ubyte.gz") as labels:
            y = np.frombuffer(labels.read(), np.uint8, offset=8).astype("int64")
    except pytest.skip.Exception:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        x = (x / 16).astype("float32")
    order = np.random.default_rng(0).permutation(len(x))
    x, y, cut = x[order], y[order], len(x) * 4 // 5
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def compiled(policy, inputs, **options):
    """Return a small network under `policy` on eight replicas; its weights are those of seed 0."""
    keras.utils.set_random_seed(0)
    with kte.strategy_scope(require="cpu", replicas=8, precision=policy):
        pixels = keras.Input((inputs,))
        hidden = keras.layers.Dense(64, activation="relu")(pixels)
        logits = keras.layers.Dense(10, dtype="float32")(hidden)
        model = kte.TPUModel(pixels, logits)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"], **options)
    return model


@pytest.mark.slow
def test_mixed_policies_train_to_within_a_point_of_float32(digits):
    (x, y), test = digits
    accuracies = {}
    for policy in ("float32", "mixed_float16", "mixed_bfloat16"):
        model = compiled(policy, x.shape[1])
        model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
        accuracies[policy] = model.evaluate(*test, batch_size=BATCH, verbose=0, return_dict=True)["accuracy"]
    print(accuracies)
    assert accuracies["float32"] > 0.9  # chance is 0.1
    for policy, accuracy in accuracies.items():
        assert abs(accuracy - accuracies["float32"]) <= 0.01, accuracies
