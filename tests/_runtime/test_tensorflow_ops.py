"""One-hot products that round nothing, also where a device multiplies float32 as bfloat16."""

import numpy as np
import pytest
import tensorflow as tf

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.tensorflow import ops as tf_ops

pytestmark = pytest.mark.runtimes("keras3_tf", "keras2_tf")


def test_a_float32_is_split_into_three_bfloat16():
    values = np.random.default_rng(0).normal(size=1000).astype("float32") * np.float32(10.0) ** np.arange(
        -20, 20, 0.04
    )
    parts = [part.numpy() for part in tf_ops._parts_of_8_bits(tf.constant(values, tf.float32))]
    assert len(parts) == 3
    for part in parts:
        np.testing.assert_array_equal(tf.cast(tf.cast(part, tf.bfloat16), tf.float32), part)
    np.testing.assert_array_equal(parts[0] + (parts[1] + parts[2]), values.astype("float32"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_a_row_comes_back_as_it_is(dtype, monkeypatch):
    matmul = tf.matmul

    def like_a_tpu(a, b, **options):
        if b.dtype == tf.float32:
            a, b = (tf.cast(tf.cast(factor, tf.bfloat16), tf.float32) for factor in (a, b))
        return matmul(a, b, **options)

    monkeypatch.setattr(tf, "matmul", like_a_tpu)
    values = tf.cast(np.random.default_rng(0).normal(size=(5, 3)), dtype)
    ones = tf.cast(np.eye(5)[[3, 1]], dtype)
    wide = "float64" if dtype == "float64" else "float32"
    got = _runtime.ops.one_hot_matmul(ones, values)
    assert got.dtype == wide
    np.testing.assert_array_equal(got, tf.cast(tf.gather(values, [3, 1]), wide))
    transposed = _runtime.ops.one_hot_matmul(tf.transpose(ones), values, transposed=True)
    np.testing.assert_array_equal(transposed, got)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "uint8"])
def test_numbers_come_through_to_the_last_bit(dtype):
    values = tf.cast(np.random.default_rng(0).normal(size=(2, 5, 3)) * 50 + 100, dtype)
    places = [[4, 0, 0], [1, 2, 9]]
    picked = tf_ops.one_hot_einsum(values, ("nij,njk->nik", tf.one_hot(places, 5, on_value=True, off_value=False)))
    assert picked.dtype == values.dtype
    values = tf.cast(values, tf.float64).numpy()
    expected = [[values[0, 4], values[0, 0], values[0, 0]], [values[1, 1], values[1, 2], np.zeros(3)]]
    np.testing.assert_array_equal(tf.cast(picked, tf.float64), expected)
