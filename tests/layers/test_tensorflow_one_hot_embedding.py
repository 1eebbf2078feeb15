"""What is TensorFlow's own about `OneHotEmbedding`: kinds of ids, and of gradients."""

import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from keras_tpu_ext.errors import ArgumentError

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")]


@pytest.mark.parametrize(
    ("ids", "kind"),
    [(tf.ragged.constant([[1, 2], [3]]), "Ragged"), (tf.sparse.from_dense([[1, 0], [0, 2]]), "Sparse")],
)
def test_ids_that_are_not_dense_are_refused(ids, kind):
    layer = kte.layers.OneHotEmbedding(10, 4)
    with pytest.raises(ArgumentError, match=rf"must be a dense tensor; got a {kind}Tensor\. Write layer\("):
        layer.call(ids)


def test_the_gradient_is_a_dense_float32():
    layer = kte.layers.OneHotEmbedding(10, 4, dtype="mixed_bfloat16")
    layer.build((None, 3))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(np.array([[1, 2, 2]])))
    (gradient,) = tape.gradient(loss, layer.trainable_variables)
    assert isinstance(gradient, tf.Tensor)
    assert gradient.dtype == tf.float32
    np.testing.assert_array_equal(gradient[:4, 0], [0, 1, 2, 0])


def test_it_compiles_with_a_batch_of_any_size():
    layer = kte.layers.OneHotEmbedding(10, 4)
    layer.build((None, 3))
    call = tf.function(lambda ids: layer(ids), input_signature=[tf.TensorSpec((None, None), "int64")])
    for shape in ((1, 2), (3, 5)):
        ids = np.ones(shape, "int64")
        np.testing.assert_array_equal(call(ids), np.broadcast_to(layer.get_weights()[0][1], (*shape, 4)))
