"""What is JAX's own about `OneHotEmbedding`: which operations it is made of."""

import re

import jax
import numpy as np
import pytest

import keras_tpu_ext as kte

pytestmark = pytest.mark.runtimes("keras3_jax")


def program(layer):
    """Return the program of the outputs' sum and its gradient, before the compiler sees it."""
    layer.build((None, 3))

    def loss(table):
        outputs, _ = layer.stateless_call([table], [], np.array([[1, 2, 2]]))
        return outputs.astype("float32").sum()

    return jax.jit(jax.grad(loss)).lower(layer.weights[0].value).as_text()


@pytest.mark.parametrize(("policy", "factors"), [("float32", "f32"), ("mixed_bfloat16", "bf16")])
def test_the_gradient_is_a_product_summed_in_float32(policy, factors):
    text = program(kte.layers.OneHotEmbedding(10, 4, dtype=policy))
    assert "scatter" not in text
    products = re.findall(r"dot_general.*?: \(tensor<\w*x(\w+)>, tensor<\w*x(\w+)>\) -> tensor<\w*x(\w+)>", text)
    assert products
    assert set(products) == {(factors, factors, "f32")}
    if policy == "float32":
        assert all("HIGHEST" in line for line in text.splitlines() if "dot_general" in line)
