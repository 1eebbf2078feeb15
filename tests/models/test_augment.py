"""`TPUModel.augment`: what the user does to a training batch inside the step."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext.errors import ArgumentError

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax", "keras2_tf215")

RNG = np.random.default_rng(3)
X = RNG.normal(size=(44, 6)).astype("float32")  # batches of 16 over 3 replicas are uneven; the last one has 12
Y = RNG.normal(size=(44, 1)).astype("float32")
EPOCHS = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}


class Augmenting(kte.TPUModel):
    """Sees its inputs the other way round, and twice its targets."""

    def augment(self, x, y):
        return x[:, ::-1], 2 * y


def trained(kind, x, y, **options):
    keras.utils.set_random_seed(5)
    inputs = keras.Input((6,))
    model = kind(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"], **options)
    history = model.fit(x, y, **EPOCHS).history
    return model, history


@pytest.mark.gate_on("keras3_tf", "keras3_jax")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.gate_on("keras3_tf")),
        pytest.param({"gradient_accumulation_steps": 2}, marks=pytest.mark.gate_on("keras3_jax")),
        pytest.param({"steps_per_execution": 2}, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
def test_a_batch_is_trained_on_as_it_was_augmented(replicas, options):
    plain, expected = trained(kte.TPUModel, X[:, ::-1], 2 * Y)
    if options.get("gradient_accumulation_steps"):
        plain, expected = trained(kte.TPUModel, X[:, ::-1], 2 * Y, **options)
    with kte.strategy_scope(replicas=replicas):
        model, history = trained(Augmenting, X, Y, **options)
    for key, values in expected.items():
        np.testing.assert_allclose(history[key], values, rtol=1e-5)  # float32 sums in another order
    for weight, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-5, atol=1e-6)


@pytest.mark.gate_on("keras3_jax", "keras2_tf215")
def test_evaluate_and_predict_see_the_batch_as_it_came():
    model, _ = trained(Augmenting, X, Y)
    inputs = keras.Input((6,))
    plain = keras.Model(inputs, model.layers[-1](inputs))
    plain.compile(loss="mse", metrics=["mae"])
    np.testing.assert_allclose(model.evaluate(X, Y, verbose=0), plain.evaluate(X, Y, verbose=0), rtol=1e-6)
    np.testing.assert_allclose(model.predict(X, verbose=0), plain.predict(X, verbose=0), rtol=1e-6)


@pytest.mark.gate_on("keras3_jax")
def test_train_on_batch_is_augmented_too():
    model, _ = trained(Augmenting, X, Y)
    plain, _ = trained(kte.TPUModel, X[:, ::-1], 2 * Y)
    np.testing.assert_allclose(
        model.train_on_batch(X[:16], Y[:16]), plain.train_on_batch(X[:16, ::-1], 2 * Y[:16]), rtol=1e-5
    )


IMAGES = RNG.normal(size=(44, 6, 6, 2)).astype("float32")
CLASSES = np.eye(3, dtype="float32")[RNG.integers(0, 3, 44)]


class Mixing(kte.TPUModel):
    """Mixes neighbours with a layer that counts its calls."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mixup = kte.layers.MixUp(alpha=1.0, seed=4)

    def augment(self, x, y):
        return self.mixup((x, y), training=True)


@pytest.mark.gate_on("keras2_tf215")  # on Keras 3 tests/layers/test_augmentation.py has such a training
def test_a_layer_with_a_state_mixes_the_same_at_any_number_of_replicas():
    def trained_on(replicas):
        keras.utils.set_random_seed(5)
        with kte.strategy_scope(replicas=replicas):
            inputs = keras.Input((6, 6, 2))
            model = Mixing(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(inputs)))
            model.compile(keras.optimizers.SGD(0.1), keras.losses.CategoricalCrossentropy(from_logits=True))
        history = model.fit(IMAGES[:32], CLASSES[:32], **EPOCHS).history["loss"]
        return history, model.get_weights(), int(keras.ops.convert_to_numpy(model.mixup.calls))

    history, weights, calls = trained_on(1)
    assert calls == 4
    of_two = trained_on(2)  # an even number on each
    np.testing.assert_allclose(of_two[0], history, rtol=1e-5)  # float32 sums in another order
    for weight, other in zip(of_two[1], weights, strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-5, atol=1e-6)
    assert of_two[2] == calls


def test_a_skipped_step_leaves_no_trace_of_what_was_drawn():
    x = IMAGES[:32].copy()
    x[0] = np.inf
    inputs = keras.Input((6, 6, 2))
    model = Mixing(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(inputs)))
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, loss_scale="dynamic")
    model.fit(x, CLASSES[:32], **{**EPOCHS, "epochs": 1})
    assert int(keras.ops.convert_to_numpy(model.mixup.calls)) == 1  # of two steps the first was skipped


@pytest.mark.parametrize(("returned", "came"), [(None, "NoneType"), ((1, 2, 3), "3 things")])
def test_what_is_no_pair_is_told(returned, came):
    class Forgets(kte.TPUModel):
        def augment(self, x, y):
            return returned

    inputs = keras.Input((6,))
    model = Forgets(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(
        ArgumentError, match=f"augment must return inputs and targets; it returned {came}. Write: return"
    ):
        model.fit(X, Y, **EPOCHS)


def test_another_number_of_rows_is_told():
    class Doubles(kte.TPUModel):
        def augment(self, x, y):
            return keras.ops.concatenate([x, x], axis=0), keras.ops.concatenate([y, y], axis=0)

    inputs = keras.Input((6,))
    model = Doubles(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(ArgumentError, match=r"as many rows as it got, \d+; it returned \d+. Write: dataset.map"):
        model.fit(X, Y, **EPOCHS)
