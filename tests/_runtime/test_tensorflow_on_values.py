"""A traced function with values in place of its variables computes what the function computes."""

import numpy as np
import pytest
import tensorflow as tf

from keras_tpu_ext._runtime.common.lowering import LoweringError
from keras_tpu_ext._runtime.tensorflow.functionalize import Functionalized


def variable(*shape):
    return tf.Variable(1 + np.arange(np.prod(shape), dtype="float32").reshape(shape), name="v")


def read(on_values):
    return [
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=spec.dtype).numpy()
        for handle, spec in zip(on_values.handles, on_values.specs, strict=True)
    ]


V, W, COUNT = variable(4, 3), variable(3), tf.Variable(0, name="count")


def reads_and_writes(x):
    before = tf.matmul(x, V)
    V.assign(V * 0.5)
    V.assign_add(tf.ones((4, 3)))
    W.assign_sub(tf.reduce_mean(before, 0))
    COUNT.assign_add(1)
    return before, tf.matmul(x, V) + W, COUNT.read_value()


def rows(x):
    picked = tf.gather(V, [2, 0, 2])
    V.scatter_sub(tf.IndexedSlices(tf.ones((2, 3)), tf.constant([1, 3])))
    V.scatter_add(tf.IndexedSlices(2 * tf.ones((2, 3)), tf.constant([1, 1])))
    V.scatter_update(tf.IndexedSlices(tf.zeros((1, 3)), tf.constant([0])))
    return picked, tf.shape(V), tf.gather_nd(V, [[1, 1]])


def branches(x):
    if tf.reduce_sum(x) > 0:
        V.assign_add(tf.ones((4, 3)))
        y = tf.reduce_sum(W)
    else:
        W.assign(W * 2)
        y = tf.reduce_sum(V)
    return y, V + 0.0, W + 0.0


def loop(x):
    total = tf.constant(0.0)
    for i in tf.range(3):
        W.assign_add(tf.cast(i, tf.float32) * tf.ones(3))
        total += tf.reduce_sum(W)
    return total, W + 0.0


@tf.function
def inner(x):
    V.assign_add(x[:, :3])
    return tf.reduce_sum(V)


def calls(x):
    return inner(x), inner(x), V + 0.0


def gradient(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.relu(tf.matmul(x, V)) @ tf.expand_dims(W, 1))
    for one, change in zip((V, W), tape.gradient(loss, [V, W]), strict=True):
        one.assign_sub(0.1 * change)
    return loss


@pytest.mark.parametrize("function", [reads_and_writes, rows, branches, loop, calls, gradient])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_it_computes_the_same(function, sign):
    x = sign * np.random.default_rng(0).uniform(size=(4, 4)).astype("float32")
    traced = tf.function(function).get_concrete_function(tf.TensorSpec((4, 4)))
    on_values = Functionalized(traced)
    values = read(on_values)
    results, after = tf.function(lambda values, x: on_values(values, x))(values, x)
    expected = tf.nest.flatten(traced(tf.constant(x)))
    for got, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert len(after) >= 1
    for got, wanted in zip(after, read(on_values), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_names_of_operations_stay():
    def named(x):
        with tf.name_scope("block"):
            return tf.matmul(x, V, name="product")

    on_values = Functionalized(tf.function(named).get_concrete_function(tf.TensorSpec((4, 4))))
    copied = tf.function(lambda value, x: on_values([value], x)).get_concrete_function(
        tf.TensorSpec((4, 3)), tf.TensorSpec((4, 4))
    )
    assert "block/product" in {operation.name for operation in copied.graph.get_operations()}


def test_a_table_is_no_variable():
    entries = tf.lookup.KeyValueTensorInitializer([1, 2], [3, 4])
    table = tf.lookup.StaticHashTable(entries, -1)
    with pytest.raises(ValueError, match="is a resource and no variable"):
        Functionalized(tf.function(lambda x: table.lookup(x)).get_concrete_function(tf.TensorSpec((4,), "int32")))


def test_what_changes_a_variable_in_another_way_is_told_by_name():
    def step(x):
        tf.raw_ops.ResourceApplyGradientDescent(var=W.handle, alpha=0.1, delta=tf.ones(3))
        return x

    on_values = Functionalized(tf.function(step).get_concrete_function(tf.TensorSpec((4, 4))))
    with pytest.raises(LoweringError, match="the operation ResourceApplyGradientDescent of TensorFlow changes"):
        tf.function(lambda value, x: on_values([value], x), autograph=False)(tf.ones(3), tf.ones((4, 4)))
