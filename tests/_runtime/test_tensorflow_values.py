"""Products with ones and zeros, of which devices may round each number to 8 bits."""

import numpy as np
import pytest
import tensorflow as tf

from keras_tpu_ext._runtime import _tf_values


def test_parts_have_8_bits_and_add_up_to_the_whole():
    rng = np.random.default_rng(0)
    values = (rng.normal(size=5000) * 10.0 ** rng.integers(-25, 30, 5000)).astype("float32")
    parts = _tf_values._parts_of_8_bits(tf.constant(values))
    for part in parts:
        np.testing.assert_array_equal(tf.cast(tf.cast(part, tf.bfloat16), tf.float32), part)
    np.testing.assert_array_equal(tf.add_n(parts), values)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "uint8"])
def test_numbers_come_through_to_the_last_bit(dtype):
    values = tf.cast(np.random.default_rng(0).normal(size=(2, 5, 3)) * 50 + 100, dtype)
    places = [[4, 0, 0], [1, 2, 9]]
    picked = _tf_values.pick(values, ("nij,njk->nik", tf.one_hot(places, 5, on_value=True, off_value=False)))
    assert picked.dtype == values.dtype
    values = tf.cast(values, tf.float64).numpy()
    expected = [[values[0, 4], values[0, 0], values[0, 0]], [values[1, 1], values[1, 2], np.zeros(3)]]
    np.testing.assert_array_equal(tf.cast(picked, tf.float64), expected)
