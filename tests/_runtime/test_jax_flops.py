"""FLOPs of functions of JAX."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.common.flops import UncountableError
from keras_tpu_ext._runtime.jax.flops import flops_of_jaxpr

pytestmark = pytest.mark.runtimes("keras3_jax")

ROW = jnp.ones((2, 3))
WEIGHTS = jnp.ones((3, 3))


def flops(function, *arguments):
    return flops_of_jaxpr(jax.make_jaxpr(function)(*arguments).jaxpr)


def product(x):
    return x @ WEIGHTS  # 36 FLOPs


def test_a_function_in_a_function_and_what_nobody_reads():
    inner = jax.jit(lambda x: (product(x), x.T @ x))

    def outer(x):
        product(x)  # which is never run
        return inner(x)[0] + inner(x)[0]

    assert flops(outer, ROW) == 72


def test_of_branches_the_costlier_one_counts():
    assert flops(lambda x: jax.lax.cond(x[0, 0] > 0, lambda: product(product(x)), lambda: x), ROW) == 72


def test_a_scan_counts_as_often_as_it_turns_and_a_while_loop_is_told():
    assert flops(lambda x: jax.lax.scan(lambda x, _: (product(x), None), x, length=5)[0], ROW) == 5 * 36
    with pytest.raises(UncountableError, match="it has a loop with products in it"):
        flops(lambda x: jax.lax.while_loop(lambda x: x[0, 0] > 0, product, x), ROW)
    assert flops(lambda x: jax.lax.while_loop(lambda x: x[0, 0] > 0, lambda x: x - 1, x), ROW) == 0


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_both_gradients_of_a_convolution_cost_what_it_costs(padding, stride, groups):
    x, w = jnp.ones((2, 9, 9, 4)), jnp.ones((3, 3, 4 // groups, 8))

    def convolution(x, w):
        return jax.lax.conv_general_dilated(
            x, w, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
        )

    forward = flops(convolution, x, w)
    assert forward == 2 * convolution(x, w).size * 3 * 3 * 4 // groups
    for argument in (0, 1):
        gradient = jax.grad(lambda x, w: convolution(x, w).sum(), argnums=argument)
        assert flops(gradient, x, w) == forward


def counted(make):
    inputs = keras.Input((6,))
    model = keras.Model(inputs, make(inputs))
    model.compile("sgd", "mse")
    throughput = kte.callbacks.Throughput(peak_flops=1e30)
    model.fit(np.ones((32, 6)), np.ones((32, 3)), batch_size=16, verbose=0, callbacks=[throughput])
    return throughput.counted_flops


class Wrapped(keras.layers.Layer):
    def __init__(self, wrap):
        super().__init__()
        self.wrap, self.first, self.second = wrap, keras.layers.Dense(5), keras.layers.Dense(3)

    def build(self, shape):
        self.first.build(shape)
        self.second.build((None, 5))

    def compute_output_shape(self, shape):
        return (shape[0], 3)

    def call(self, x):
        return self.wrap(lambda x: self.second(self.first(x)))(x)


def test_what_is_computed_again_to_save_memory_does_not_count():
    plain = counted(lambda x: Wrapped(lambda f: f)(x))
    assert counted(lambda x: Wrapped(jax.checkpoint)(x)) == plain == (2 * (6 * 5 * 2 + 5 * 3 * 3), 16)


def test_a_function_with_a_gradient_of_its_own():
    @jax.custom_vjp
    def same(x):
        return x

    same.defvjp(lambda x: (x, None), lambda _, gradient: (2 * gradient,))
    found = counted(lambda x: keras.layers.Dense(3)(keras.layers.Lambda(same, output_shape=(6,))(x)))
    assert found.per_sample == 2 * 6 * 3 * 2


def test_a_kernel_whose_products_cannot_be_seen_is_told():
    from jax.experimental import pallas

    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] @ WEIGHTS[:, :]

    call = pallas.pallas_call(lambda x, out: None, out_shape=jax.ShapeDtypeStruct((2, 3), jnp.float32))
    with pytest.raises(UncountableError, match=r"products cannot be seen \(pallas_call\)"):
        flops(call, ROW)
