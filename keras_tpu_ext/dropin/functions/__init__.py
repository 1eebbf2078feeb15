"""TensorFlow's functions on values of JAX: one table.

A key is the canonical name of a function, which all its aliases share (`tf.reduce_sum` is "math.reduce_sum"). The
values have TensorFlow's signatures and compute with `keras.ops` and `jax.numpy`. As long as JAX has no 64 bits,
int64 is int32 and float64 is float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras_tpu_ext.dropin.functions import (
    arrays,
    debugging,
    elementwise,
    images,
    indexing,
    linalg,
    nn,
    random,
    reductions,
)
from keras_tpu_ext.dropin.functions.arguments import bind

ROOMS = (elementwise, reductions, arrays, indexing, linalg, nn, images, random, debugging)

TABLE: dict[str, Callable[..., Any]] = {
    name: bind(name, function) for room in ROOMS for name, function in room.FUNCTIONS.items()
}
