"""The states of Python's and NumPy's global random generators."""

from __future__ import annotations

import random

import numpy as np

from keras_tpu_ext._runtime.common.types import RandomState
from keras_tpu_ext._schema import MismatchError

_WORDS = 624  # of a Mersenne Twister, each of 32 bits


def random_state() -> RandomState:
    """Return the states."""
    return {"python": random.getstate(), "numpy": np.random.get_state()}


def set_random_state(state: RandomState) -> None:
    """Set the states."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])


def check_random_state(value: object, where: str) -> RandomState:
    """Check states that a file holds; NumPy itself would read beyond the end of a state that is none.

    Raises:
        MismatchError: If they are no states of these generators.
    """
    if isinstance(value, dict) and list(value) == ["python", "numpy"]:
        is_numpy = _is_numpy(value["numpy"]) or _is_like(value["numpy"], np.random.get_state())
        if _is_python(value["python"]) and is_numpy:
            return value
    raise MismatchError(where, "states of Python's and NumPy's random generators", value)


def _is_python(state: object) -> bool:
    if not (isinstance(state, tuple) and len(state) == 3 and state[0] == 3):
        return False
    _, words, gauss = state
    is_state = isinstance(words, tuple) and len(words) == _WORDS + 1 and all(type(one) is int for one in words)
    return (
        is_state
        and all(0 <= one < 2**32 for one in words)
        and words[-1] <= _WORDS
        and (gauss is None or type(gauss) is float)
    )


def _is_numpy(state: object) -> bool:
    if not (isinstance(state, tuple) and len(state) == 5 and state[0] == "MT19937"):
        return False
    _, key, position, has_gauss, gauss = state
    is_key = isinstance(key, np.ndarray) and key.dtype == np.uint32 and key.shape == (_WORDS,)
    is_position = type(position) is int and 0 <= position <= _WORDS
    return is_key and is_position and has_gauss in (0, 1) and type(gauss) is float


def _is_like(value: object, other: object) -> bool:
    """Return whether a state has the form of another one, of a generator that NumPy was given."""
    if isinstance(value, dict) and isinstance(other, dict):
        return list(value) == list(other) and all(_is_like(value[name], other[name]) for name in other)
    if type(value) is int and type(other) is int:
        return 0 <= value < 2**128
    if isinstance(value, np.ndarray) and isinstance(other, np.ndarray):
        return value.dtype == other.dtype and value.shape == other.shape
    return type(value) is type(other) and (type(value) is float or (type(value) is str and value == other))


def fingerprint_of_random_state() -> tuple[object, ...]:
    """Return a value that is different after a number was drawn."""
    state = np.random.get_state(legacy=False)["state"]
    key = state.get("key")  # of NumPy's default, the Mersenne Twister
    return hash(random.getstate()), repr(state) if key is None else (hash(key.tobytes()), state["pos"])
