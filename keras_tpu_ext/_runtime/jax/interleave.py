"""A stack along the last axis, as of rotary embeddings, by products: a TPU is slow to move numbers between lanes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_ext._runtime.common.patches import Patch
from keras_tpu_ext._runtime.common.types import Tensor
from keras_tpu_ext._runtime.compat.keras3 import backend_ops
from keras_tpu_ext._runtime.jax.traced_devices import traces_for_tpu
from keras_tpu_ext._runtime.keras3.tpu_operations import computes_for_tpu

_DTYPES = ("float32", "bfloat16", "float16")
# Lengths of the last two axes of a stack, multiplied: less does not fill a vector, and more costs products more.
_LEAST, _MOST = 128, 512


def stack_patches() -> list[Patch]:
    """Return the patch of `keras.ops.stack` where it is traced for a TPU."""
    return [(backend_ops.numpy, "keras.src.backend.numpy.stack", _stack)] if traces_for_tpu() else []


def _stack(original: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    @functools.wraps(original)
    def stack(x: Sequence[Tensor], axis: int = 0) -> jax.Array:
        if not computes_for_tpu() or axis == 0:
            return original(x, axis=axis)
        arrays = [keras.ops.convert_to_tensor(one) for one in x]
        (shape, dtype), *others = {(one.shape, str(one.dtype)) for one in arrays}
        suits = not others and dtype in _DTYPES and axis in (-1, len(shape))
        if not suits or not shape or not _LEAST <= len(arrays) * shape[-1] <= _MOST:
            return original(x, axis=axis)
        return transposed(len(arrays), jnp.concatenate(arrays, axis=-1)).reshape(*shape, len(arrays))

    return stack


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def transposed(rows: int, x: jax.Array) -> jax.Array:
    """Return an array whose last axis is that of `x`, which is a matrix of so many rows, transposed.

    The bytes of the numbers are multiplied with ones and zeros, which is exact, also for what is not finite.
    """
    size, bits = x.shape[-1], 8 * x.dtype.itemsize
    order = np.arange(size).reshape(rows, -1).T.reshape(-1)
    selection = jax.nn.one_hot(order, size, axis=0, dtype="bfloat16")
    words = jax.lax.bitcast_convert_type(x, f"uint{bits}").astype("int32")
    found = jnp.zeros_like(words)
    for shift in range(0, bits, 8):
        byte = ((words >> shift) & 255).astype("bfloat16")
        found |= jnp.matmul(byte, selection, preferred_element_type="float32").astype("int32") << shift
    return jax.lax.bitcast_convert_type(found.astype(f"uint{bits}"), x.dtype)


transposed.defvjp(
    lambda rows, x: (transposed(rows, x), None),
    lambda rows, _, upstream: (transposed(upstream.shape[-1] // rows, upstream),),
)
