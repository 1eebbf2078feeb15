"""What keeps a model on TensorFlow from a TPU is told with layer, line and cure."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte

pytestmark = pytest.mark.runtimes("keras3_tf", "keras2_tf")


class OnHost(keras.layers.Layer):
    def call(self, x):
        y = tf.py_function(lambda value: value * 2, [x], tf.float32)  # on_host
        y.set_shape(x.shape)
        return y


class Kept(keras.layers.Layer):
    def call(self, x):  # kept
        rows = tf.boolean_mask(x, x[:, 0] > 0)
        return x + tf.reduce_mean(tf.linalg.matmul(rows, rows, transpose_a=True))


def line_of(name):
    lines = Path(__file__).read_text().splitlines()
    return f"test_tensorflow_faults.py:{next(i for i, line in enumerate(lines, 1) if line.endswith(f'# {name}'))}"


def report_of(layer):
    inputs = keras.Input((8,))
    x = layer(keras.layers.Dense(8, name="before")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1, name="after")(x), name="faulty")
    model.compile("sgd", "mse")
    data = np.zeros((64, 8), "float32"), np.zeros((64, 1), "float32")
    return kte.preflight(model, data, cache_dir=False, progress=False)


def test_a_python_function():
    report = report_of(OnHost(name="on_host"))
    assert not report.ok
    assert (report.fault.layer, report.fault.line) == ("on_host", line_of("on_host"))
    assert report.fault.cause == "a TPU does not have the operation EagerPyFunc of TensorFlow"
    assert "no Python runs on a TPU" in report.fault.cure


def test_a_shape_that_depends_on_values():
    report = report_of(Kept(name="kept"))
    assert not report.ok
    assert (report.fault.layer, report.fault.line) == ("kept", line_of("kept"))
    assert "depends on values" in report.fault.cause
    assert "mask with keras.ops.where" in report.fault.cure


@pytest.mark.parametrize("inside", [True, False])
def test_a_lookup_of_strings(inside):
    words = ["a", "b", "c"]
    lookup = keras.layers.StringLookup(vocabulary=words, name="lookup")
    inputs = keras.Input((1,), dtype="int32" if inside else "string")
    x = keras.layers.Lambda(tf.strings.as_string, name="as_string")(inputs) if inside else inputs
    x = keras.layers.Flatten()(keras.layers.Embedding(5, 4)(lookup(x)))
    model = keras.Model(inputs, keras.layers.Dense(1)(x), name="strings")
    model.compile("sgd", "mse")
    data = np.zeros((64, 1), "int32") if inside else np.array([["a"]] * 64), np.zeros((64, 1), "float32")
    report = kte.preflight(model, data, cache_dir=False, progress=False)
    assert not report.ok
    assert report.fault.layer in ("lookup", "as_string")
    assert "turn them into numbers in the input pipeline" in report.fault.cure
