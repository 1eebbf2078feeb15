"""How the step is traced on TensorFlow."""

import keras
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
