"""Mixed precision on real handwritten digits, on eight rehearsed replicas."""

from __future__ import annotations

import gzip

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits

import keras_tpu_ext as kte

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")

BATCH = 100  # 12 or 13 examples a replica: it does not divide by eight
EPOCHS = 4


@pytest.fixture(scope="module")
def digits(shared_data_or_none):
    """Train and test images as rows of numbers from 0 to 1, with labels; a fifth is for the test.

    They are MNIST's where it is there, else scikit-learn's.
    """
    folder = shared_data_or_none
    if folder is not None:
        with gzip.open(folder / "mnist-t10k-images-idx3-ubyte.gz") as images:
            x = np.frombuffer(images.read(), np.uint8, offset=16).reshape(-1, 784) / np.float32(255)
        with gzip.open(folder / "mnist-t10k-labels-idx1-ubyte.gz") as labels:
            y = np.frombuffer(labels.read(), np.uint8, offset=8).astype("int64")
    else:
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


@pytest.mark.exhaustive
@pytest.mark.slow
def test_mixed_policies_train_to_within_a_point_of_float32(digits):
    (x, y), test = digits
    accuracies = {}
    for policy in ("float32", "mixed_float16", "mixed_bfloat16"):
        model = compiled(policy, x.shape[1])
        model.fit(x, y, batch_size=BATCH, epochs=max(EPOCHS, 320 * BATCH // len(x)), shuffle=False, verbose=0)
        accuracies[policy] = model.evaluate(*test, batch_size=BATCH, verbose=0, return_dict=True)["accuracy"]
    print(accuracies)
    assert accuracies["float32"] > 0.9  # chance is 0.1
    for policy in ("mixed_float16", "mixed_bfloat16"):
        assert abs(accuracies[policy] - accuracies["float32"]) <= 0.01, accuracies


def train_once(model, x, y):
    """Train for an epoch and return the weights in one vector."""
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    return np.concatenate([weights.ravel() for weights in model.get_weights()])


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2 counts a skipped step, and Adam goes by that")
@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss_scale", "tolerance"),
    [
        # The scale stays, so both runs compute the same numbers.
        pytest.param(kte.LossScale(backoff_factor=1.0), 0.0, marks=pytest.mark.exhaustive),
        # The scale halves in one of the runs. That is exact but where a gradient comes near the least number of
        # float16, 6e-8: 9e-10 measured.
        ("dynamic", 1e-6),
    ],
    ids=["the scale stays", "dynamic"],
)
def test_an_inf_on_one_replica_is_as_if_the_step_had_not_been(digits, loss_scale, tolerance):
    (x, y), test = digits
    step_5 = slice(4 * BATCH, 5 * BATCH)
    poisoned = x.copy()
    poisoned[4 * BATCH + 15, 7] = np.inf  # replica 1 has the rows 13 to 25 of a batch
    ours = compiled("mixed_float16", x.shape[1], loss_scale=loss_scale)
    other = compiled("mixed_float16", x.shape[1], loss_scale=loss_scale)
    start = np.concatenate([weights.ravel() for weights in other.get_weights()])
    got = train_once(ours, poisoned, y)
    expected = train_once(other, np.delete(x, step_5, axis=0), np.delete(y, step_5))

    assert [int(model._kte.state.skipped_steps.numpy()) for model in (ours, other)] == [1, 0]
    halved = 2 if loss_scale == "dynamic" else 1
    assert float(other._kte.state.scale.numpy()) == halved * float(ours._kte.state.scale.numpy()) == 2.0**15
    taken, steps = (int(model.optimizer.iterations.numpy()) for model in (ours, other))
    assert steps == -(-len(x) // BATCH) - 1
    assert taken == steps
    off = np.linalg.norm(got - expected) / np.linalg.norm(expected - start)
    print(f"the weights' change is off by {off:.1e} of its norm")
    assert off <= tolerance
    accuracies = [model.evaluate(*test, verbose=0, return_dict=True)["accuracy"] for model in (ours, other)]
    assert accuracies[0] == pytest.approx(accuracies[1], abs=0.002)
