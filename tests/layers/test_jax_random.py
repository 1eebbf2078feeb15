"""Our Threefry beside JAX's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32

from keras_tpu_ext.layers import _random

pytestmark = pytest.mark.runtimes("keras3_jax")


def test_threefry_is_that_of_jax():
    rng = np.random.default_rng(0)
    key = jnp.asarray(rng.integers(0, 2**32, 2, dtype="uint32"))
    counter = jnp.asarray(rng.integers(0, 2**32, 2000, dtype="uint32"))
    got = _random.threefry((key[0], key[1]), (counter[:1000], counter[1000:]))
    np.testing.assert_array_equal(jnp.concatenate(got), threefry_2x32(key, counter))


def test_draws_are_the_same_when_compiled():
    examples = jnp.arange(64, dtype="int32")
    eager = _random.random_bits((3, jnp.int32(4)), examples, 65536, 4)
    compiled = jax.jit(lambda step: _random.random_bits((3, step), examples, 65536, 4))(jnp.int32(4))
    np.testing.assert_array_equal(np.stack(eager), np.stack(compiled))
