"""Read variables with shards on other processes as NumPy arrays: all processes read them together."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager

import jax
import keras
import numpy as np

from keras_tpu_ext._runtime.common.patches import patched

_Read = Callable[..., np.ndarray]


def has_shards_elsewhere(variable: keras.Variable) -> bool:
    """Return whether other processes have shards of a variable that this one lacks."""
    value = variable.value
    return isinstance(value, jax.Array) and not (value.is_fully_addressable or value.is_fully_replicated)


def reading_shards() -> AbstractContextManager[None]:
    """Return a context in which reading a variable gathers it from all processes, each of which must read it."""
    return patched([(keras.Variable, "keras.Variable.__array__", _gathering)])


def _gathering(original: _Read) -> _Read:
    @functools.wraps(original)
    def read(variable: keras.Variable, dtype: str | None = None) -> np.ndarray:
        if not has_shards_elsewhere(variable):
            return original(variable, dtype)
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(variable.value, tiled=True), dtype)

    return read
