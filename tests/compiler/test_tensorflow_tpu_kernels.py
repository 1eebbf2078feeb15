"""TensorFlow with kernels for TPUs: it is recognised, has the operations of others, and preflight refuses it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.tensorflow import lowering
from keras_tpu_ext._runtime.tensorflow.devices import has_tpu_kernels
from keras_tpu_ext.machine.system import installed_version

IS_FOR_TPUS = installed_version("tensorflow-tpu") is not None

pytestmark = pytest.mark.runtimes("keras3_tf", "keras2_tf")


def test_it_is_known_whether_it_is_for_tpus():
    assert has_tpu_kernels() == IS_FOR_TPUS


@pytest.mark.skipif(not IS_FOR_TPUS, reason="needs tensorflow-tpu")
def test_a_tpu_has_every_operation_that_xla_has_on_a_cpu():
    """So it does no harm to lower as for a CPU."""
    one = tf.function(lambda x: x + 1, jit_compile=True)
    one.experimental_get_compiler_ir(tf.TensorSpec([4]))(stage="stablehlo", platform_name="TPU")  # registers them
    by_device: dict[str, set[str]] = {}
    for kernel in kernels.get_all_registered_kernels().kernel:
        by_device.setdefault(kernel.device_type, set()).add(kernel.op)
    assert len(by_device["XLA_CPU_JIT"]) > 400
    assert by_device["XLA_CPU_JIT"] <= by_device["XLA_TPU_JIT"]


def test_preflight_refuses_it_and_says_where_to_ask(monkeypatch):
    if not IS_FOR_TPUS:
        monkeypatch.setattr(lowering, "has_tpu_kernels", lambda: True)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    report = kte.preflight(model, (np.zeros((64, 8)), np.zeros((64, 1))), cache_dir=False, progress=False)
    assert not report.ok
    assert report.fault.cause == (
        f"this TensorFlow, {tf.__version__}, was built for TPUs (tensorflow-tpu), and such a build does not give out "
        "the program of a train step"
    )
    assert report.fault.cure == (
        "ask in an environment with tensorflow-cpu, which lowers the same program: tensorflow-tpu 2.20 has every "
        "operation that XLA has for CPUs, complex128 apart"
    )
