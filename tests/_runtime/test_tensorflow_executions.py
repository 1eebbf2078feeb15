"""Batches taken ahead of their turn on TensorFlow, and the private names that this leans on."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.common.padding import PaddedBatch
from keras_tpu_ext._runtime.tensorflow import probes
from keras_tpu_ext._runtime.tensorflow.probes import TensorFlowExecution
from private_names import mend

pytestmark = pytest.mark.runtimes("keras3_tf", "keras2_tf")


def model(scope):
    with scope:
        inputs = keras.Input((3,))
        made = kte.TPUModel(inputs, keras.layers.Dense(1)(inputs))
        made.compile("sgd", "mse")
    return made


def rows(n=22):
    x = np.arange(3 * n, dtype="float32").reshape(n, 3)
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1]))


def ragged():
    words = tf.ragged.constant([[i] * (1 + i % 3) for i in range(22)])
    return tf.data.Dataset.from_tensor_slices((words, tf.range(22))).batch(10)


DATA = {
    "batches and a short one": lambda: rows().batch(10),
    "static": lambda: rows(20).batch(10, drop_remainder=True),
    "padded": lambda: kte.data.pad_batches(rows().batch(10), 10),
    "named": lambda: rows().batch(10).map(lambda x, y: ({"a": x, "b": y}, y)),
    "ragged": ragged,
    "unbatched numbers": lambda: tf.data.Dataset.range(3),
}


def taken(made, dataset, executions=5):
    """Return what a pipeline gave ahead, and an iterator of the same that nobody has taken anything from."""
    strategy = made.distribute_strategy
    distributed = strategy.experimental_distribute_dataset(dataset)
    iterator = iter(distributed)
    execution = TensorFlowExecution(made, None, (iterator,))
    return iterator, execution.take_ahead(executions, 2**20, time.perf_counter), iter(distributed)


@pytest.mark.parametrize("data", DATA)
def test_what_is_taken_ahead_is_described_as_the_pipeline_and_is_the_same(data):
    made = model(kte.strategy_scope(require="cpu", replicas=1))
    iterator, ahead, untouched = taken(made, DATA[data]())
    assert ahead.source._type_spec == iterator._type_spec  # else the step would be traced anew
    assert_same(list(ahead.source), list(untouched), made)
    assert ahead.batches == ahead.executions == len(ahead.seconds)


@pytest.mark.parametrize("data", ["batches and a short one", "padded", "named"])
def test_on_replicas_every_one_gets_its_own_part(scope4, data):
    made = model(scope4)
    iterator, ahead, untouched = taken(made, DATA[data]())
    assert ahead.source._type_spec == iterator._type_spec
    assert_same(list(ahead.source), list(untouched), made)


def assert_same(got, expected, made):
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert isinstance(one, PaddedBatch) == isinstance(other, PaddedBatch)
        local = made.distribute_strategy.experimental_local_results
        for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
            for x, y in zip(local(a), local(b), strict=True):
                x, y = (value.to_tensor() if isinstance(value, tf.RaggedTensor) else value for value in (x, y))
                np.testing.assert_array_equal(x, y)


def test_no_more_is_taken_than_fits():
    made = model(kte.strategy_scope(require="cpu", replicas=1))
    iterator = iter(rows(100).batch(10))
    execution = TensorFlowExecution(made, None, (iterator,))
    assert execution.take_ahead(9, 3 * 10 * 4 * 4, time.perf_counter).executions == 3


def test_a_batch_by_itself_is_no_pipeline():
    made = model(kte.strategy_scope(require="cpu", replicas=1))
    assert TensorFlowExecution(made, None, ([(1, 2)],)).take_ahead(3, 100, time.perf_counter) is None


def test_stages_are_named_with_their_costs_where_tensorflow_knows_them():
    if probes.get_model_proto is None:
        assert tuple(map(int, tf.__version__.split(".")[:2])) < (2, 16), mend("get_model_proto")
        pytest.skip("this TensorFlow does not tell")
    slow = rows(400).map(lambda x, y: (tf.linalg.matmul(tf.ones([200, 200]) * x[0], tf.ones([200, 200])), y))
    iterator = iter(slow.batch(4))
    for _ in range(60):
        next(iterator)
    stages = TensorFlowExecution(None, None, (iterator,)).stages()
    assert "Root" in {stage.name for stage in stages}
    assert "Map" in max(stages, key=lambda stage: stage.seconds).name
    assert all(stage.seconds >= 0 for stage in stages)


def test_the_parts_of_a_distributed_batch_have_a_description():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    iterator = iter(strategy.experimental_distribute_dataset(rows().batch(10)))
    specs = tf.nest.flatten(iterator.element_spec)
    assert all(len(spec._value_specs) == 2 for spec in specs), mend("_value_specs")
