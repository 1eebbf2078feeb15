"""How the step is traced on TensorFlow."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.tensorflow import batch as _tf_batch

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf", "keras2_tf215")]


def dense(model_class):
    inputs = keras.Input((6,))
    return model_class(inputs, keras.layers.Dense(1)(inputs))


@pytest.mark.parametrize("padded", [True, False])
def test_there_is_one_trace_where_there_were_two(data, padded):
    traces = []

    class Traced(kte.TPUModel):
        def train_step(self, data):
            traces.append(data[0].shape)
            return super().train_step(data)

    model = dense(Traced)
    model.compile("sgd", "mse", jit_compile=False)
    # An input pipeline with static batches and a short last one: what NumPy arrays or a mapped dataset make.
    batches = [(data.x[:32], data.y[:32]), (data.x[32:64], data.y[32:64]), (data.x[64:70], data.y[64:70])]
    parts = [tf.data.Dataset.from_tensors(batch) for batch in batches]
    whole = parts[0].concatenate(parts[1]).concatenate(parts[2])
    model.fit(kte.data.pad_batches(whole, 32) if padded else whole, epochs=2, shuffle=False, verbose=0)
    assert set(traces) == ({(32, 6)} if padded else {(None, 6)})


def test_nothing_of_a_batch_outlives_its_step(data):
    """Where replicas run in the main thread, as on TPUs, the next step may be traced into another graph."""
    model = dense(kte.TPUModel)
    model.compile("sgd", "mse")
    model.fit(data.x, data.y, batch_size=33, verbose=0)
    left = _tf_batch.BATCH
    assert (left.examples, left.total, left.has_any, left.valid, left.layer_losses) == (None, None, None, None, ())


def aligned(array):
    """Return a copy at an address that TensorFlow can use without copying."""
    memory = np.empty(array.nbytes + 64, "uint8")
    begin = -memory.ctypes.data % 64
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


@pytest.mark.parametrize("steps_per_execution", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
@pytest.mark.gate_on("keras3_tf")
def test_the_arrays_of_a_generator_stay_as_they_are(scope3, steps_per_execution):
    """TensorFlow takes them for its own memory, and wrote the loss of each example where its target had been."""
    x, y = aligned(np.ones((64, 16), "float32")), aligned(np.arange(64, dtype="float32")[:, None])

    def batches():
        while True:
            for begin in range(0, 64, 16):
                yield x[begin : begin + 16], y[begin : begin + 16]

    with scope3:
        model = kte.TPUModel.from_model(keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)]))
        model.compile(keras.optimizers.SGD(1e-9), "mse", steps_per_execution=steps_per_execution)
    options = {"epochs": 2, "validation_data": batches(), "validation_steps": 4, "shuffle": False, "verbose": 0}
    model.fit(batches(), steps_per_epoch=4, **options)
    model.predict(batches(), steps=4, verbose=0)
    np.testing.assert_array_equal(x, np.ones((64, 16)))
    np.testing.assert_array_equal(y[:, 0], np.arange(64))


@pytest.mark.runtimes("keras3_tf")
@pytest.mark.parametrize("method", ["make_train_function", "make_test_function", "make_predict_function"])
def test_an_attribute_does_not_turn_xla_on(scope3, method):
    """Inside `strategy.run` XLA reads memory that is free already; a model of two outputs ended the program."""
    with scope3:
        model = dense(keras.Model)
        model.compile("sgd", "mse")
        model.jit_compile = True
        getattr(model, method)()
    assert not model.jit_compile


@pytest.mark.runtimes("keras3_tf")
def test_a_loss_that_is_called_by_hand_in_the_scope_is_not_divided(scope3):
    loss, y, predictions = keras.losses.MeanSquaredError(), np.ones((4, 1), "float32"), np.full((4, 1), 3, "float32")
    with scope3:
        value = loss(y, predictions)
    assert float(value) == 4


@pytest.mark.runtimes("keras3_tf")
@pytest.mark.parametrize("kind", [int, float])
def test_a_variable_in_the_scope_is_a_number(scope3, kind):
    with scope3:
        assert kind(keras.Variable(3.0)) == 3


@pytest.mark.runtimes("keras3_tf")
def test_none_for_an_input_that_is_needed_is_told_as_on_one_device(scope3, data):
    with scope3:
        model = dense(keras.Model)
        model.compile("sgd", "mse")
        with pytest.raises(ValueError, match="not optional"):
            model.fit([None], data.y, verbose=0)
