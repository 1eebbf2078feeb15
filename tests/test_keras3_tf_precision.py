import keras
import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.runtimes("keras3_tf")


def test_fused_attention_is_indeed_computed_in_float32():
    # What test_precision.py relies on: one large score among equal ones, which bfloat16 could not tell apart.
    heads = np.ones((1, 4, 1, 1), "float32")
    query = tf.cast(heads, "bfloat16")
    graph = tf.function(lambda: keras.ops.dot_product_attention(query, query, query)).get_concrete_function().graph
    softmaxes = [op for op in _all_operations(graph) if op.type == "Softmax"]
    assert [op.outputs[0].dtype for op in softmaxes] == [tf.float32]


def _all_operations(graph):
    yield from graph.get_operations()
    for name in graph._functions:
        yield from graph._get_function(name).graph.get_operations()
