"""Attention compiled for TPUs: the kernel of each chip, what it costs, and what Keras's own step is."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

pytestmark = pytest.mark.runtimes("keras3_jax")

SHAPE = (256, 64)


def model(make, attention):
    inputs = keras.Input(SHAPE)
    x = attention()(inputs)
    made = make(inputs, keras.layers.Dense(1, name="out")(x))
    made.compile("sgd", "mse")
    return made


def heads(**options):
    return lambda x: keras.layers.MultiHeadAttention(4, 32, name="attention", **options)(x, x)


def report(made, target="v5e-8", each=2):
    return kte.preflight(
        made, (np.zeros((8, *SHAPE), "float32"), np.zeros((8, 256, 1), "float32")), target, each, progress=False
    )


@pytest.mark.parametrize(
    "target",
    [
        "v5e-8",
        pytest.param("v6e-8", marks=pytest.mark.exhaustive),
        pytest.param("v5e-1", marks=pytest.mark.exhaustive),
    ],
)
def test_each_chip_runs_the_kernel(target):
    found = report(model(kte.TPUModel, lambda: heads(flash_attention=True)), target)
    assert found.ok, str(found)
    assert found.time.by_kernels > 0
    attention = next(layer for layer in found.layers if layer.layer == "attention")
    assert attention.flops == 7 * 2 * (2 * 4 * 256 * 256) * 32  # products of scores and depth: 2 forward, 5 backward
    assert found.time.kernels_by_compiler, "this libtpu does not tell what it makes of kernels; see _compiler.py"


def test_the_kernel_with_dropout():
    with kte.strategy_scope(require="cpu", for_tpu=True):
        made = model(kte.TPUModel, lambda: heads(dropout=0.1))
    found = report(made, "v5e-8")
    assert found.ok, str(found)
    assert found.time.by_kernels > 0
    assert found.time.kernels_by_compiler
    attention = next(layer for layer in found.layers if layer.layer == "attention")
    assert attention.flops == 7 * 2 * (2 * 4 * 256 * 256) * 32


class Decoding(keras.layers.Layer):
    """Attention as keras-hub's Gemma has it: rotated by pairs, grouped, capped, and by a mask what is before."""

    def __init__(self):
        super().__init__(name="attention")
        self.query, self.key, self.value = (keras.layers.Dense(count * 256) for count in (4, 2, 2))

    def build(self, shape):
        for dense in (self.query, self.key, self.value):
            dense.build(shape)

    def compute_output_shape(self, shape):  # where there is no TPU, Keras refuses to call it with a cap
        return (*shape[:-1], 4 * 256)

    def call(self, x):
        rows = keras.ops.shape(x)[0]
        query, key, value = (
            keras.ops.reshape(dense(x), (rows, SHAPE[0], -1, 256)) for dense in (self.query, self.key, self.value)
        )
        query, key = (
            keras.ops.reshape(keras.ops.stack(keras.ops.split(one, 2, axis=-1), axis=-1), keras.ops.shape(one))
            for one in (query, key)
        )
        mask = keras.ops.tile(keras.ops.tri(SHAPE[0], dtype="bool")[None, None], (rows, 1, 1, 1))
        found = keras.ops.dot_product_attention(query, key, value, mask=mask, attn_logits_soft_cap=50.0)
        return keras.ops.reshape(found, (rows, SHAPE[0], 4 * 256))


@pytest.mark.parametrize(
    "target",
    ["v5e-8", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("v4-8", "v5p-8", "v6e-8"))],
)
def test_the_kernel_of_a_decoder(target):
    with kte.strategy_scope(require="cpu", for_tpu=True):
        made = model(kte.TPUModel, lambda: lambda x: Decoding()(x))
    found = report(made, target)
    assert found.ok, str(found)
    assert found.time.by_kernels > 0
    assert found.time.kernels_by_compiler


def test_a_plain_model_on_several_chips_is_told_the_cure():
    found = report(model(keras.Model, heads))
    assert "Mosaic kernels cannot be automatically partitioned" in found.fault.cause
    assert "make and compile the model in kte.strategy_scope()" in found.fault.cure


@pytest.mark.exhaustive
def test_a_plain_model_on_one_chip_is_told_what_it_computes(caplog):
    made = model(keras.Model, heads)
    assert report(made, "v5e-1").ok
    assert f"computes the attention of {made.name!r} as if it were causal and unscaled" in caplog.text


def test_v3_has_no_kernel_that_it_could_not_compile():
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        found = report(model(kte.TPUModel, lambda: heads(flash_attention=True)), "v3-8", 1)
    finally:
        keras.config.set_dtype_policy(policy)
    assert found.ok, str(found)
    assert found.time.by_kernels == 0
    low, high = found.time.seconds_range
    assert low <= found.step_seconds <= high
    assert found.time.measured == "3 training steps"
