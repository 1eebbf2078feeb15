"""What of the layers reaches the compiler: no loop, no gather, and products that keep every bit."""

import jax
import numpy as np
import pytest

import keras_tpu_ext as kte
import plain_augmentation as plain

pytestmark = pytest.mark.runtimes("keras3_jax")

L = kte.layers


@pytest.mark.parametrize(
    "layer",
    [
        L.RandomFlipCrop(height=6, padding=1, seed=0),
        pytest.param(L.RandomAffine(rotation=0.5, seed=0), marks=pytest.mark.exhaustive, id="RandomAffine"),
        pytest.param(L.RandomErasing(seed=0), marks=pytest.mark.exhaustive, id="RandomErasing"),
        pytest.param(L.MixUp(seed=0), marks=pytest.mark.exhaustive, id="MixUp"),
        pytest.param(L.CutMix(seed=0), marks=pytest.mark.exhaustive, id="CutMix"),
    ],
    ids=lambda layer: type(layer).__name__,
)
@pytest.mark.parametrize("count", [8, pytest.param(7, marks=pytest.mark.exhaustive)])
def test_the_program_has_no_loop_and_no_gather(layer, count):
    images, classes = plain.digits(count)
    inputs = (images, plain.one_hot(classes)) if isinstance(layer, (L.MixUp, L.CutMix)) else images
    layer(inputs)  # builds it
    state = [variable.value for variable in layer.non_trainable_variables]
    step = jax.jit(lambda state, inputs: layer.stateless_call([], state, inputs, training=True))
    text = step.lower(state, inputs).as_text()
    for word in (
        "stablehlo.while",
        "stablehlo.gather",
        "stablehlo.dynamic_gather",
        "stablehlo.scatter",
        "custom_call",
    ):
        assert word not in text
    outputs, (calls,) = step(state, inputs)
    assert int(calls) == 1
    for have, want in zip(jax.tree.leaves(outputs), jax.tree.leaves(layer(inputs, training=True)), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-6)
    layer.calls.assign(0)


@pytest.mark.parametrize(
    ("dtype", "is_highest"), [("float32", True), ("float16", True), ("uint8", False), ("bfloat16", False)]
)
def test_products_of_more_than_8_bits_are_exact_on_devices_that_would_round_them(dtype, is_highest):
    layer = L.RandomFlipCrop(padding=1, seed=0)
    layer.build((None, 8, 8, 1))
    state = [variable.value for variable in layer.non_trainable_variables]
    step = jax.jit(lambda state, x: layer.stateless_call([], state, x, training=True)[0])
    text = step.lower(state, jax.numpy.zeros((2, 8, 8, 1), dtype)).as_text()
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    assert len(products) == 2
    assert all(("HIGHEST" in line) == is_highest for line in products)
