"""TensorFlow with and without kernels for TPUs: which it is, and what the kernels have."""

import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

from keras_tpu_ext._runtime.tensorflow.tpu import has_tpu_kernels
from kind_of_keras import IS_TENSORFLOW_FOR_TPUS


def test_it_is_known_whether_it_is_for_tpus():
    assert has_tpu_kernels() == IS_TENSORFLOW_FOR_TPUS


@pytest.mark.skipif(not IS_TENSORFLOW_FOR_TPUS, reason="needs tensorflow-tpu")
def test_a_tpu_has_every_operation_that_xla_has_on_a_cpu():
    """So it does no harm to lower as for a CPU where TensorFlow knows nothing else."""
    one = tf.function(lambda x: x + 1, jit_compile=True)
    one.experimental_get_compiler_ir(tf.TensorSpec([4]))(stage="stablehlo", platform_name="TPU")  # registers them
    by_device: dict[str, set[str]] = {}
    for kernel in kernels.get_all_registered_kernels().kernel:
        by_device.setdefault(kernel.device_type, set()).add(kernel.op)
    assert len(by_device["XLA_CPU_JIT"]) > 400
    assert by_device["XLA_CPU_JIT"] <= by_device["XLA_TPU_JIT"]
