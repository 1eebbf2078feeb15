"""What keeps a model on JAX from a TPU is told with layer, line and cure."""

from pathlib import Path

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

pytestmark = pytest.mark.runtimes("keras3_jax")


class Positive(keras.layers.Layer):
    def call(self, inputs):
        return inputs[inputs > 0]  # positive


class OnHost(keras.layers.Layer):
    def call(self, inputs):
        return inputs * np.asarray(inputs).max()  # on_host


class WithoutGradient(keras.layers.Layer):
    def call(self, inputs):
        import jax

        shape = jax.ShapeDtypeStruct(inputs.shape, inputs.dtype)
        found = jax.pure_callback(np.abs, shape, jax.lax.stop_gradient(inputs))  # called
        return inputs + jax.lax.stop_gradient(found)


class Model(keras.Model):
    def __init__(self, layer):
        super().__init__(name="faulty")
        self.dense, self.layer = keras.layers.Dense(8, name="dense"), layer

    def call(self, inputs):
        x = self.dense(inputs)
        return x + keras.ops.sum(self.layer(x))


def line_of(name):
    lines = Path(__file__).read_text().splitlines()
    return f"test_jax_faults.py:{next(i for i, line in enumerate(lines, 1) if line.endswith(f'# {name}'))}"


def report_of(layer, dtype="float32"):
    model = Model(layer)
    model.compile("sgd", "mse")
    data = np.zeros((64, 8), dtype), np.zeros((64, 8), "float32")
    return kte.preflight(model, data, cache_dir=False, progress=False)


def test_a_shape_that_depends_on_values():
    report = report_of(Positive(name="positive"))
    assert not report.ok
    assert (report.fault.layer, report.fault.line) == ("positive", line_of("positive"))
    assert "mask with keras.ops.where" in report.fault.cure


def test_numpy_inside_of_a_layer():
    report = report_of(OnHost(name="on_host"))
    assert (report.fault.layer, report.fault.line) == ("on_host", line_of("on_host"))
    assert "no Python runs on a TPU" in report.fault.cure


def test_a_callback_without_a_gradient_keeps_its_reason():
    import jax

    def double(x):
        return jax.pure_callback(lambda x: 2 * x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)  # double

    report = report_of(keras.layers.Lambda(double, output_shape=(8,), name="double"))
    assert (report.fault.layer, report.fault.line) == ("double", line_of("double"))
    assert "Pure callbacks do not support JVP" in report.fault.cause
    assert "\x1b" not in report.fault.cause
    assert "no Python runs on a TPU" in report.fault.cure


def test_a_callback_that_can_be_traced():
    report = report_of(WithoutGradient(name="called"))
    assert (report.fault.layer, report.fault.line) == ("called", line_of("called"))
    assert report.fault.cause.startswith("pure_callback calls Python on the host in every step")
    assert "no Python runs on a TPU" in report.fault.cure


def test_strings():
    report = report_of(keras.layers.Identity(), dtype="<U3")
    assert report.fault.cause == "the batch holds strings"
    assert "turn them into numbers in the input pipeline" in report.fault.cure
    assert "Instead: a TPU has no strings" in str(report)
