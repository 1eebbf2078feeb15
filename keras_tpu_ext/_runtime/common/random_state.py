"""The states of Python's and NumPy's global random generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from keras_tpu_ext._runtime.common.types import RandomState
from keras_tpu_ext.checks.schema import MismatchError

_WORDS = 624  # of a Mersenne Twister, each of 32 bits


def random_state() -> dict[str, Any]:
    """Return the states."""
    return {"python": random.getstate(), "numpy": np.random.get_state()}


def set_random_state(state: RandomState) -> None:
    """Set the states."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])


def check_random_state(value: object, where: str) -> dict[str, Any]:
    """Check states that a file holds; NumPy itself would read beyond the end of a state that is none."""
    if isinstance(value, dict) and list(value) == ["python", "numpy"]:
        is_numpy = _is_numpy(value["numpy"]) or _is_like(value["numpy"], np.random.get_state())
        if _is_python(value["python"]) and is_numpy:
            return value
    raise MismatchError(where, "states of Python's and NumPy's random generators", value)


def _is_python(state: object) -> bool:
    if not (isinstance(state, tuple) and len(state) == 3 and type(state[0]) is int):
        return False
    version, words, gauss = state
    is_state = isinstance(words, tuple) and len(words) == _WORDS + 1 and all(type(one) is int for one in words)
    return (
        is_state
        and version == random.Random.VERSION
        and all(0 <= one < 2**32 for one in words)
        and words[-1] <= _WORDS
        and (gauss is None or type(gauss) is float)
    )


def _is_numpy(state: object) -> bool:
    if not (isinstance(state, tuple) and len(state) == 5 and type(state[0]) is str):
        return False
    name, key, position, has_gauss, gauss = state
    is_key = isinstance(key, np.ndarray) and key.dtype == np.uint32 and key.shape == (_WORDS,)
    is_gauss = type(has_gauss) is int and has_gauss in (0, 1) and type(gauss) is float
    return name == "MT19937" and is_key and _is_place(position, _WORDS) and is_gauss


def _is_place(value: object, last: int) -> bool:
    return type(value) is int and 0 <= value <= last


def _is_like(value: object, other: object) -> bool:
    """Return whether a state has the form of another one, of a generator that NumPy was given."""
    if isinstance(value, dict) and isinstance(other, dict):
        is_place = _is_place(value.get("pos", 0), _WORDS) and _is_place(value.get("buffer_pos", 0), 4)
        return list(value) == list(other) and is_place and all(_is_like(value[name], other[name]) for name in other)
    if type(value) is int and type(other) is int:
        return 0 <= value < 2**128
    if isinstance(value, np.ndarray) and isinstance(other, np.ndarray):
        return value.dtype == other.dtype and value.shape == other.shape
    return type(value) is type(other) and (type(value) is float or (type(value) is str and value == other))


def is_generator(value: object) -> bool:
    """Return whether `value` is a random generator of Python or NumPy."""
    return type(value) in (random.Random, np.random.Generator, np.random.RandomState)


def state_of_generator(generator: Any) -> RandomState:
    """Return the state of a generator, as plain values."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state()


def is_state_of_generator(generator: Any, value: object) -> bool:
    """Return whether a value of a file is a state of such a generator."""
    if isinstance(generator, random.Random):
        return _is_python(value)
    return _is_numpy(value) or _is_like(value, state_of_generator(generator))


def set_state_of_generator(generator: Any, state: RandomState) -> None:
    """Set the state of a generator."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def fingerprint_of_random_state() -> tuple[object, ...]:
    """Return a value that is different after a number was drawn."""
    state = np.random.get_state(legacy=False)["state"]
    key = state.get("key")  # of NumPy's default, the Mersenne Twister
    return hash(random.getstate()), repr(state) if key is None else (hash(key.tobytes()), state["pos"])
