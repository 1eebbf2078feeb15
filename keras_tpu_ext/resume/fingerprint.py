"""Whether the value of an attribute has changed, also in place."""

from __future__ import annotations

import collections
import contextlib
import json
import zlib
from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.random_state import is_generator, state_of_generator
from keras_tpu_ext.resume.encoding import encode, is_array
from keras_tpu_ext.resume.tensor_file import CannotWriteError

# Bytes of an array; a larger one is recognized by a sample of its values.
_LARGE = 2**24
_SAMPLE = 2**16
_FEW = 2**10  # elements of what no checkpoint can hold
# RuntimeError is JAX's, for an array whose memory was donated to the next step.
CANNOT_BE_KEPT = CannotWriteError, RecursionError, RuntimeError
NOT_KEPT = "cannot be kept"


def fingerprint(value: Any, here: str = "") -> tuple[Any, Any]:
    """Return a value that differs for different inputs; it begins with `NOT_KEPT` if no checkpoint can hold them.

    Args:
        value: The value.
        here: The module of the callback: objects of its classes are looked into.
    """
    if is_generator(value):
        value = state_of_generator(value)
    inside = _inside(value, here)
    try:
        if inside is not None:
            return NOT_KEPT, (id(value), _fingerprint_of(inside))
        return _fingerprint_of(value)
    except RecursionError:  # such as of an object that holds itself
        return NOT_KEPT, id(value)


def _inside(value: Any, here: str) -> Any:
    """Return what changes in an object that no checkpoint can hold; `None` if that is unknown."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return value.flat[:: value.size // _FEW + 1].tolist()
    is_container = isinstance(value, (list, tuple, set, dict)) and type(value) not in (list, tuple, set, dict)
    if is_container or isinstance(value, collections.deque):
        return [len(value), list(value.items() if isinstance(value, dict) else value)[:_FEW]]
    is_own = here and type(value).__module__ == here and not isinstance(value, (type, _runtime.keras.layers.Layer))
    return dict(vars(value)) if is_own and hasattr(value, "__dict__") else None


def _fingerprint_of(value: Any) -> tuple[Any, Any]:
    if type(value) is np.ndarray and is_array(value) and value.nbytes > _LARGE:
        return id(value), zlib.crc32(_bytes(value.flat[:: value.size // _SAMPLE + 1]))
    members: list[Any] = []
    try:
        encoded = encode(value, members)
    except CANNOT_BE_KEPT:
        if type(value) in (list, tuple):
            return NOT_KEPT, [_fingerprint_of(one) for one in value]
        if type(value) is dict:
            return NOT_KEPT, [(name, _fingerprint_of(one)) for name, one in list(value.items())]
        return NOT_KEPT, (id(value), _of_variable(value))
    return json.dumps(encoded), [zlib.crc32(_bytes(member)) for member in members]


def _of_variable(value: Any) -> int | None:
    """Return a number of what a variable holds; `None` of what is none, or of one that does not tell."""
    if not hasattr(value, "assign"):
        return None
    with contextlib.suppress(Exception):  # one for replicas gives no array
        return zlib.crc32(_bytes(np.asarray(value)))
    return None


def _bytes(member: Any) -> Any:
    return member if isinstance(member, bytes) else np.ascontiguousarray(member).reshape(-1).view(np.uint8)
