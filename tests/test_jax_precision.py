import jax
import jax.numpy as jnp
import keras
import pytest

pytestmark = pytest.mark.runtimes("keras3_jax")


def test_fused_attention_is_indeed_computed_in_float32():
    # What test_precision.py relies on: exp is the softmax's.
    query = jnp.ones((1, 4, 1, 1), "bfloat16")
    program = jax.make_jaxpr(lambda: keras.ops.dot_product_attention(query, query, query))()
    assert {str(dtype) for dtype in _dtypes_of_exp(program.jaxpr)} == {"float32"}


def _dtypes_of_exp(program):
    for equation in program.eqns:
        if equation.primitive.name == "exp":
            yield equation.outvars[0].aval.dtype
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "jaxpr")):
            if hasattr(inner, "jaxpr"):
                yield from _dtypes_of_exp(inner.jaxpr)
