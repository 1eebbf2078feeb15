"""What a replica without examples gives to an optimizer."""

import numpy as np
import pytest
import tensorflow as tf

from keras_tpu_ext._runtime.tensorflow.empty_replicas import finite_if_empty

pytestmark = pytest.mark.runtimes("keras3_tf", "keras2_tf")

ROWS = [[0.0, 0.0], [1.0, np.inf], [0.0, np.nan]]


def looked_up(has_any):
    gradient = tf.IndexedSlices(tf.constant(ROWS), tf.constant([1, 4, 1]), tf.constant([5, 2]))
    (got,) = finite_if_empty([gradient], tf.constant(has_any))
    return got.values.numpy().tolist(), got.indices.numpy().tolist()


def test_a_replica_without_examples_has_looked_up_no_row():
    """A lazy optimizer decays each row that it gets a gradient for, be it zero."""
    assert looked_up(has_any=False) == ([[1.0, 0.0]], [4])


def test_the_gradient_of_examples_stays():
    values, indices = looked_up(has_any=True)
    np.testing.assert_array_equal(values, ROWS)
    assert indices == [1, 4, 1]
