"""Stacks along the last axis by products, against those of Keras: every bit, and gradients."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.jax import interleave
from keras_tpu_ext._runtime.jax.exact_operations import exact_operations
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices
from keras_tpu_ext.testing import as_on_tpu

pytestmark = pytest.mark.runtimes("keras3_jax", reason="it is a patch of Keras's backend for JAX")

RNG = np.random.default_rng(0)


@pytest.fixture
def on_tpu(monkeypatch):
    """Compute a function as on a TPU, and tell whether the stack was by products."""
    taken = []

    def compute(function, *arguments, operations=True):
        original = interleave.transposed
        monkeypatch.setattr(interleave, "transposed", lambda *args: taken.append(1) or original(*args))
        with as_on_tpu(), exact_operations(TracedDevices()):
            if not operations:
                return function(*arguments), bool(taken)
            with _runtime.tpu_operations():
                return function(*arguments), bool(taken)

    return compute


def bits(array):
    return np.asarray(array).view(f"uint{8 * array.dtype.itemsize}")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("count", "axis"), [(2, -1), (2, 2), (3, -1)])
def test_every_bit_is_as_in_keras(count, axis, dtype, on_tpu):
    special = [np.inf, -np.inf, np.nan, -0.0, 1e-7, 65504.0]
    arrays = [RNG.standard_normal((2, 64)).astype("float32") for _ in range(count)]
    arrays[1][0, : len(special)] = special
    arrays = [jnp.asarray(array).astype(dtype) for array in arrays]
    found, by_products = on_tpu(jax.jit(lambda *arrays: keras.ops.stack(arrays, axis=axis)), *arrays)
    assert by_products
    np.testing.assert_array_equal(bits(found), bits(jnp.stack(arrays, axis=axis)))


def test_gradients_of_gradients_are_those_of_keras(on_tpu):
    weights = RNG.standard_normal((2, 128)).astype("float32")

    def squared_gradient(x):
        def interleaved(x):
            pairs = keras.ops.stack(keras.ops.split(x, 2, axis=-1), axis=-1)
            return jnp.sum(weights * keras.ops.reshape(pairs, x.shape) ** 3)

        gradient = jax.grad(interleaved)(x)
        return jnp.sum(gradient**2), gradient

    x = RNG.standard_normal((2, 128)).astype("float32")
    expected = jax.grad(squared_gradient, has_aux=True)(x)
    found, by_products = on_tpu(jax.grad(squared_gradient, has_aux=True), x)
    assert by_products
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


OTHERS = {
    "another axis": ([np.ones((2, 64), "float32")] * 2, 1, True),
    "integers": ([np.ones((2, 64), "int32")] * 2, -1, True),
    "several dtypes": ([np.ones((2, 64), "float32"), np.ones((2, 64), "float16")], -1, True),
    "less than a vector": ([np.ones((2, 32), "float32")] * 2, -1, True),
    "many vectors": ([np.ones((2, 512), "float32")] * 2, -1, True),
    "numbers": ([1.0, 2.0], -1, True),
    "without operations for a TPU": ([np.ones((2, 64), "float32")] * 2, -1, False),
}


@pytest.mark.parametrize(("arrays", "axis", "operations"), OTHERS.values(), ids=OTHERS)
def test_keras_stacks_all_others(arrays, axis, operations, on_tpu):
    expected = keras.ops.stack(arrays, axis=axis)
    found, by_products = on_tpu(lambda: keras.ops.stack(arrays, axis=axis), operations=operations)
    assert not by_products
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype
