"""Sparse and ragged inputs on TensorFlow, whose last batch leaves replicas without a row: as on one device."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from closeness import assert_close

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf", "keras2_tf215")]


MORE = {"steps_per_execution": 2}, {"run_eagerly": True}


@pytest.fixture(scope="module")
def dense():
    rng = np.random.default_rng(4)
    return (rng.normal(size=(43, 9)) * (rng.uniform(size=(43, 9)) < 0.3)).astype("float32")


def compiled(scope, optimizer="Adam", **options):
    keras.utils.set_random_seed(3)
    with scope:
        inputs = keras.Input((9,), sparse=True)
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(4, activation="tanh")(inputs)))
        model.compile(getattr(keras.optimizers, optimizer)(0.1), "mse", metrics=["mae"], **options)
    return model


def outcome(model, dense, as_dataset):
    x, y = tf.sparse.from_dense(dense), dense.sum(axis=1, keepdims=True)
    data, batches = (x, y), {"batch_size": 14}  # the last one has one row
    if as_dataset:
        data, batches = (tf.data.Dataset.from_tensor_slices(data).batch(14),), {}
    history = model.fit(*data, **batches, epochs=2, shuffle=False, verbose=0).history
    evaluated = model.evaluate(*data, **batches, verbose=0)
    return {**history, "evaluated": evaluated, "predicted": model.predict(data[0], **batches, verbose=0)}


def on_batch(model, dense):
    x, y = tf.sparse.from_dense(dense), dense.sum(axis=1, keepdims=True)
    return {f.__name__: f(x, y) for f in (model.train_on_batch, model.test_on_batch)} | {
        "predicted": model.predict_on_batch(x)
    }


def assert_same(got, stock):
    assert got.keys() == stock.keys()
    for name, values in stock.items():
        assert_close(np.asarray(got[name]), np.asarray(values), message=name)


@pytest.mark.parametrize("as_dataset", [pytest.param(False, marks=pytest.mark.exhaustive), True])
@pytest.mark.parametrize("options", [{}, *(pytest.param(each, marks=pytest.mark.exhaustive) for each in MORE)])
def test_sparse_inputs_give_the_numbers_of_one_device(dense, as_dataset, options):
    # Adam squares the slices of a gradient, which are not told apart eagerly.
    optimizer = "SGD" if "run_eagerly" in options else "Adam"
    stock = outcome(compiled(contextlib.nullcontext(), optimizer), dense, as_dataset)
    ours = compiled(kte.strategy_scope(require="cpu", replicas=3), optimizer, **options)
    assert_same(outcome(ours, dense, as_dataset), stock)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rows", [43, pytest.param(1, marks=pytest.mark.runtimes("keras3_tf"))])
def test_one_sparse_batch_gives_the_numbers_of_one_device(scope3, dense, rows):
    stock, ours = (on_batch(compiled(scope), dense[:rows]) for scope in (contextlib.nullcontext(), scope3))
    assert_same(ours, stock)


def test_a_dataset_that_is_distributed_by_hand(scope3, dense):
    batches = tf.data.Dataset.from_tensor_slices({"x": tf.sparse.from_dense(dense)}).batch(14)
    with scope3 as scope:
        parts = [scope.strategy.experimental_local_results(batch["x"]) for batch in scope.distribute(batches)]
    rows = [tf.sparse.to_dense(part) for batch in parts for part in batch]
    assert [len(part) for part in rows[-3:]] == [1, 0, 0]
    np.testing.assert_array_equal(tf.concat(rows, axis=0), dense)


class OfRagged(keras.Model):
    """Is built by its first batch, which must be ragged."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2, activation="tanh")
        self.out = keras.layers.Dense(1)

    def call(self, x):
        return self.out(tf.reduce_mean(x.with_flat_values(self.dense(x.flat_values)), axis=1))


@pytest.mark.runtimes("keras3_tf")
@pytest.mark.filterwarnings("ignore:.* at the examples of a batch together:UserWarning")
@pytest.mark.parametrize("method", ["fit", pytest.param("train_on_batch", marks=pytest.mark.exhaustive)])
def test_ragged_batches_give_the_numbers_of_one_device(scope3, dense, method):
    x, y = tf.RaggedTensor.from_row_lengths(dense[:15], [1, 2, 3, 4, 1, 2, 2]), dense[:7, :1]

    def results(scope):
        keras.utils.set_random_seed(3)
        with scope:
            model = OfRagged()
            model.compile("adam", "mse", metrics=["mae"])
        if method == "train_on_batch":
            return model.train_on_batch(x, y, return_dict=True)
        batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(3)  # the last one has one row
        return model.fit(batches, shuffle=False, verbose=0).history

    assert_same(results(scope3), results(contextlib.nullcontext()))
