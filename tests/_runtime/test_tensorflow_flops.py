"""FLOPs of graphs of TensorFlow, and the private name that this leans on."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.common.flops import UncountableError
from keras_tpu_ext._runtime.tensorflow.flops import flops_of_graph
from private_names import mend

pytestmark = pytest.mark.runtimes("keras3_tf", "keras2_tf")

ROW = tf.TensorSpec([2, 3])


def flops(function, *specs):
    graph = tf.function(function).get_concrete_function(*specs).graph
    return flops_of_graph(graph, graph.outputs)


def product(x):
    return tf.matmul(x, tf.ones([3, 3]))  # 36 FLOPs


def test_a_function_in_a_function_and_what_nobody_reads():
    @tf.function
    def inner(x):
        return product(x), tf.matmul(x, x, transpose_a=True)

    def outer(x):
        product(x)  # which is never run
        return inner(x)[0] + inner(x)[0]

    assert flops(outer, ROW) == 72


def test_of_branches_the_costlier_one_counts():
    assert flops(lambda x: tf.cond(x[0, 0] > 0, lambda: product(product(x)), lambda: product(x)), ROW) == 72
    branches = [lambda x=x: x for x in (1.0, 2.0)]
    assert flops(lambda i: tf.switch_case(i, branches), tf.TensorSpec([], tf.int32)) == 0


def test_loops_of_known_length():
    def five(x):
        return tf.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, product(x)), (0, x))[1]

    assert flops(five, ROW) == 5 * 36
    assert flops(tf.function(five), ROW) == 5 * 36

    def at_most_four(x):
        return tf.while_loop(lambda x: x[0, 0] > 0, lambda x: (product(x),), (x,), maximum_iterations=4)[0]

    assert flops(at_most_four, ROW) == 4 * 36


def test_a_gradient_of_a_loop():
    weights = tf.Variable(tf.ones([3, 3]))

    def gradient(x):
        with tf.GradientTape() as tape:
            _, y = tf.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, tf.matmul(x, weights)), (0, x))
        return tape.gradient(y, weights)

    assert flops(gradient, ROW) == 3 * 5 * 36


def test_a_loop_of_unknown_length_is_told():
    def loop(x):
        return tf.while_loop(lambda x: x[0, 0] > 0, lambda x: (product(x),), (x,))[0]

    with pytest.raises(UncountableError, match="it has a loop with products in it"):
        flops(loop, ROW)
    assert flops(lambda x: tf.while_loop(lambda x: x[0, 0] > 0, lambda x: (x - 1,), (x,))[0], ROW) == 0


def test_products_of_every_kind():
    a, b = tf.TensorSpec([4, 2, 3]), tf.TensorSpec([4, 3, 5])
    assert flops(tf.matmul, a, b) == 2 * 4 * 2 * 3 * 5
    assert flops(lambda a, b: tf.matmul(a, b, adjoint_a=True, adjoint_b=True), tf.TensorSpec([4, 3, 2]),
                 tf.TensorSpec([4, 5, 3])) == 2 * 4 * 2 * 3 * 5  # fmt: skip
    assert flops(lambda a, b: tf.einsum("abc,acd->abd", a, b), a, b) == 2 * 4 * 2 * 3 * 5
    volume, taps = tf.TensorSpec([2, 5, 5, 5, 3]), tf.TensorSpec([3, 3, 3, 3, 4])
    forward = 2 * 2 * 3**3 * 4 * 3**3 * 3
    assert flops(lambda x, w: tf.nn.conv3d(x, w, [1] * 5, "VALID"), volume, taps) == forward

    def both_gradients(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.nn.conv3d(x, w, [1] * 5, "VALID")
        return tape.gradient(y, [x, w])

    assert flops(both_gradients, volume, taps) == 2 * forward


def test_products_that_cannot_be_seen_are_told():
    def sparse(x):
        return tf.sparse.sparse_dense_matmul(tf.sparse.from_dense(x), tf.ones([3, 2]))

    with pytest.raises(UncountableError, match=r"products cannot be seen \(SparseTensorDenseMatMul\)"):
        flops(sparse, ROW)


def trained(model, dataset):
    throughput = kte.callbacks.Throughput(peak_flops=1e30)
    model.compile("sgd", "mse")
    history = model.fit(dataset, verbose=0, shuffle=False, callbacks=[throughput]).history
    assert "throughput/device/mfu" not in history
    return throughput.counted_flops


def test_texts_of_any_length_are_told():
    layers = keras.layers
    model = keras.Sequential([keras.Input((None, 3)), layers.Dense(4), layers.GlobalAveragePooling1D()])
    lengths = tf.data.Dataset.range(24).map(lambda i: (tf.ones([2 + i % 3, 3]), tf.ones([4])))
    with pytest.warns(UserWarning, match="no MFU.*because its batches have dimensions of unknown size.*Write: Thro"):
        assert trained(model, lengths.padded_batch(4)) is None


def test_padded_batches_and_several_inputs():
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    outputs = keras.layers.Dense(4)(keras.layers.Concatenate()([a, b]))
    model = kte.TPUModel([a, b], outputs)
    data = tf.data.Dataset.from_tensor_slices((({"a": np.ones((20, 3)), "b": np.ones((20, 2))}), np.ones((20, 4))))
    throughput = kte.callbacks.Throughput(peak_flops=1e30)
    model.compile("sgd", "mse")
    model.fit(kte.data.pad_batches(data.batch(8), 8), verbose=0, shuffle=False, callbacks=[throughput])
    assert throughput.counted_flops.per_sample == 2 * 5 * 4 * 2


def test_a_graph_gives_its_functions():
    inner = tf.function(product)
    graph = tf.function(lambda x: inner(x)).get_concrete_function(ROW).graph
    (call,) = [op for op in graph.get_operations() if op.type == "PartitionedCall"]
    body = graph._get_function(call.get_attr("f").name).graph
    assert [op.type for op in body.get_operations()].count("MatMul") == 1, mend("_get_function")
