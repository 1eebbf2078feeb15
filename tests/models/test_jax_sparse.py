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
        pytest.param({"steps_per_execution": 2}, keras.Model, marks=pytest.mark.exhaustive),
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


class Parts(keras.utils.PyDataset):
    """Batches of 4 and 3 rows, of which the second has many more entries that are not zero."""

    def __init__(self, together=False):
        super().__init__()
        self.x = sparse.csr_matrix(np.repeat([[0.0, 0, 0.5], [1, 2, 3]], [4, 3], axis=0), dtype="float32")
        self.y = np.repeat([[1.0], [20]], [4, 3], axis=0)
        self.cuts = [(0, 7)] if together else [(0, 4), (4, 7)]

    def __len__(self):
        return len(self.cuts)

    def __getitem__(self, index):
        first, last = self.cuts[index]
        return self.x[first:last], self.y[first:last]


def of_parts(model_class, data, **options):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((3,), sparse=True)
    model = model_class(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.SGD(0.01), "mse", **options)
    loss = model.evaluate(data, verbose=0)
    model.fit(data, verbose=0)
    return [loss, *model.get_weights()]


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}])
def test_rows_of_a_sparse_batch_count_and_not_its_entries(options):
    expected = of_parts(keras.Model, Parts(together=bool(options)))
    for got, value in zip(of_parts(kte.TPUModel, Parts(), **options), expected, strict=True):
        assert_close(got, value)


def test_a_model_without_weights_that_train_takes_a_step_with_dynamic_loss_scale(data):
    inputs = keras.Input((6,))
    model = kte.TPUModel(inputs, keras.layers.Dense(1, trainable=False)(inputs))
    model.compile("sgd", "mse", loss_scale="dynamic")
    assert np.isfinite(model.fit(data.x, data.y, verbose=0).history["loss"]).all()
