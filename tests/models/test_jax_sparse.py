"""Sparse inputs on JAX: the numbers of stock Keras on one device."""

import contextlib

import keras
import numpy as np
import pytest
from scipy import sparse

import keras_tpu_ext as kte
from closeness import assert_close

pytestmark = [pytest.mark.runtimes("keras3_jax"), pytest.mark.gate_on("keras3_jax")]


@pytest.fixture(scope="module")
def matrix():
    return sparse.random(43, 9, density=0.3, format="csr", dtype="float32", random_state=4)


def outcome(model_class, scope, matrix, **options):
    keras.utils.set_random_seed(3)
    with scope:
        inputs = keras.Input((9,), sparse=True)
        model = model_class(inputs, keras.layers.Dense(1)(keras.layers.Dense(4, activation="tanh")(inputs)))
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"], **options)
    y = np.asarray(matrix.sum(axis=1))
    history = model.fit(matrix, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    evaluated = model.evaluate(matrix, y, batch_size=16, verbose=0)
    return {**history, "evaluated": evaluated, "predicted": model.predict(matrix, batch_size=16, verbose=0)}


@pytest.mark.parametrize(
    ("options", "model_class"),
    [
        ({}, kte.TPUModel),
        ({"steps_per_execution": 2}, keras.Model),
        pytest.param({}, keras.Model, marks=pytest.mark.exhaustive),
        pytest.param({"steps_per_execution": 2}, kte.TPUModel, marks=pytest.mark.exhaustive),
    ],
)
def test_sparse_inputs_give_the_numbers_of_one_device(matrix, model_class, options):
    stock = outcome(keras.Model, contextlib.nullcontext(), matrix)
    got = outcome(model_class, kte.strategy_scope(require="cpu", replicas=3), matrix, **options)
    assert got.keys() == stock.keys()
    for name, values in stock.items():
        assert_close(np.asarray(got[name]), np.asarray(values), message=name)


def test_a_model_without_weights_that_train_takes_a_step_with_dynamic_loss_scale(data):
    inputs = keras.Input((6,))
    model = kte.TPUModel(inputs, keras.layers.Dense(1, trainable=False)(inputs))
    model.compile("sgd", "mse", loss_scale="dynamic")
    assert np.isfinite(model.fit(data.x, data.y, verbose=0).history["loss"]).all()
