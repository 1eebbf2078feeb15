"""Errors of compilers and runtimes that say that memory is missing, and the text that `fit` makes of them."""

import re

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.common.out_of_memory import read_out_of_memory

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")
ON_JAX = keras.backend.backend() == "jax"
GIB, MIB = 2**30, 2**20
# As libtpu writes it; the first lines are those of https://openxla.org/xla/errors/error_1000.
COMPILER = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used \
20.50G of 15.75G hbm. Exceeded hbm capacity by 4.75G.

Total hbm usage >= 20.75G:
    reserved        258.00M
    program          18.25G
    arguments         2.25G

Output size 2.25G; shares 2.25G with arguments.

  Largest program allocations in hbm:

  1. Size: 4.00G
     Operator: op_name="jit(step)/dense/dot_general"
     Shape: f32[32768,32768]{1,0:T(8,128)}
     ==========================

  2. Size: 1.00G
     Shape: f32[16384,16384]{1,0:T(8,128)}
"""
TPU_BUFFER = (
    "RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 8.00M. That was not possible. There "
    "are 6.43M free.; (0x0x1_HBM0)"
)
TPU_PROGRAM = (
    "RESOURCE_EXHAUSTED: Error loading program 'jit_step': Attempting to reserve 29.49G at the bottom of memory. "
    "That was not possible. There are 147.64M free, 0B reserved, and 147.64M reservable."
)
EARLY = (
    "RESOURCE_EXHAUSTED: Compilation failure: Aborting compilation early because it's unlikely to have enough "
    "memory. Requires 3.84T, has 90.96G available."
)
NAMED = (
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
    "temporaries (16.75G) exceeds available HBM (7.48G)."
)
GPU = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."
TENSOR = "OOM when allocating tensor with shape[4000,400] and type float on /job:localhost/device:GPU:0 by GPU_0_bfc"


@pytest.mark.parametrize(
    ("text", "asked", "limit", "free", "is_program", "code"),
    [
        (COMPILER, 20.5 * GIB, 15.75 * GIB, None, True, "E1000"),
        (NAMED, 16.75 * GIB, 7.48 * GIB, None, True, "E1000"),
        (EARLY, 3840 * GIB * 1.024, 90.96 * GIB, None, True, "E1000"),
        (TPU_BUFFER, 8 * MIB, None, 6.43 * MIB, False, "E0100"),
        (TPU_PROGRAM, 29.49 * GIB, None, 147.64 * MIB, False, "E0101"),
        (GPU, 16 * GIB, None, None, False, ""),
        ("RESOURCE_EXHAUSTED: Out of memory allocating 64000 bytes.", 64000, None, None, False, ""),
        ("Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.5GiB", 2.5 * GIB, None, None, False, ""),
        (TENSOR, None, None, None, False, ""),
    ],
)
def test_what_an_error_says_is_read(text, asked, limit, free, is_program, code):
    found = read_out_of_memory(text)
    assert found.is_certain
    assert [found.asked, found.limit, found.free] == [
        size if size is None else pytest.approx(size) for size in (asked, limit, free)
    ]
    assert (found.is_program, found.code) == (is_program, code)


def test_the_breakdown_and_the_largest_buffers_are_read():
    found = read_out_of_memory(COMPILER)
    assert found.parts == {"reserved": 258 * MIB, "program": 18.25 * GIB, "arguments": 2.25 * GIB}
    assert found.buffers == ((4 * GIB, "jit(step)/dense/dot_general"), (1 * GIB, ""))
    assert read_out_of_memory(TENSOR).shape == "float [4000,400]"


@pytest.mark.parametrize(
    "text",
    [
        "INVALID_ARGUMENT: Unsupported type f64",
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 32.42M of 16.00M vmem.",
        "RESOURCE_EXHAUSTED: Allocation (size=134217728) would exceed memory (size=67108864) :: space=vmem",
    ],
)
def test_other_errors_and_those_of_a_kernel_are_left_alone(text):
    assert read_out_of_memory(text) is None


def test_another_resource_is_not_certainly_memory():
    assert not read_out_of_memory("RESOURCE_EXHAUSTED: Received message larger than max (5 vs. 4)").is_certain


class Fails(keras.callbacks.Callback):
    """Fails in the place of a step."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def on_train_batch_begin(self, batch, logs=None):
        raise self.error


def model_of(*layers):
    with kte.strategy_scope(require="cpu"):
        model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(256), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    return model


def error_of(text):
    if ON_JAX:
        import jax

        return jax.errors.JaxRuntimeError(text)
    import tensorflow as tf

    return tf.errors.ResourceExhaustedError(None, None, text)


def told(text, **options):
    error = error_of(text)
    model = model_of()
    model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
    with pytest.raises(kte.errors.DeviceMemoryError) as caught:
        model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0, callbacks=[Fails(error)], **options)
    assert caught.value.__cause__ is error
    assert isinstance(caught.value, type(error))  # `except` of a user's program works as before
    return str(caught.value)


def test_a_program_that_is_too_large_ends_in_one_text():
    text = told(COMPILER, batch_size=8)
    assert "fit ran out of memory on a device: it needed 20.5 GiB for the whole program, and it has 15.8 GiB." in text
    assert "https://openxla.org/xla/errors/error_1000" in text
    assert f"weights {1537 * 4 / 2**10:.3g} KiB" in text
    assert f"optimizer state {2 * 1537 * 4 / 2**10:.3g} KiB" in text
    assert "batch and other arguments 2.25 GiB, temporaries and program 18.2 GiB" in text
    assert "The largest: jit(step)/dense/dot_general 4 GiB, a buffer 1 GiB" in text
    assert "batch_size=4 in place of 8, and compile(..., gradient_accumulation_steps=2)" in text
    assert ('kte.strategy_scope(shard="fsdp")' in text) is ON_JAX
    assert ("kte.layers.remat(model" in text) is ON_JAX
    assert "Exceeded hbm capacity by 4.75G" in text


def test_a_buffer_of_a_tpu_ends_in_one_text():
    text = told(TPU_BUFFER)
    assert "needed 8 MiB for one buffer, and it does not say how much it has, and 6.43 MiB were free" in text
    assert "error_0100" in text
    assert "half the batch size" in text
    assert re.search(r"/kernel\S* \(4, 256\) 4 KiB", text)  # the largest variables, where no buffer is listed


def test_a_tensor_of_tensorflow_ends_in_one_text():
    text = told(TENSOR)
    assert "it needed float [4000,400]" in text
    assert "which this error does not tell" in text


def test_other_errors_stay_as_they_are():
    error = RuntimeError("RESOURCE_EXHAUSTED: Received message larger than max")
    with pytest.raises(RuntimeError) as caught:
        model_of().fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0, callbacks=[Fails(error)])
    assert caught.value is error


class TooLarge(keras.layers.Layer):
    """Asks for 40 TB in training."""

    def call(self, x, training=False):
        if not training:
            return x
        row = keras.ops.tile(keras.ops.reshape(x, (-1,)), 100_000)
        return x + keras.ops.sum(keras.ops.sort(row[:, None] * row[None, :]))


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: has no keras.ops")
def test_a_real_error_of_a_cpu_is_explained():
    with pytest.raises(kte.errors.DeviceMemoryError, match=r"fit ran out of memory on a device: it needed") as caught:
        model_of(TooLarge()).fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
    assert "Write next: " in str(caught.value)
    assert "ResourceExhaustedError" in repr(caught.value.__cause__) or "JaxRuntime" in repr(caught.value.__cause__)
