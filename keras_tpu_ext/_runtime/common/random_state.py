"""The states of Python's and NumPy's global random generators."""

from __future__ import annotations

import random

import numpy as np

from keras_tpu_ext._runtime.common.types import RandomState


def random_state() -> RandomState:
    """Return the states."""
    return {"python": random.getstate(), "numpy": np.random.get_state()}


def set_random_state(state: RandomState) -> None:
    """Set the states."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])


def fingerprint_of_random_state() -> tuple[object, ...]:
    """Return a value that is different after a number was drawn."""
    state = np.random.get_state(legacy=False)["state"]
    key = state.get("key")  # of NumPy's default, the Mersenne Twister
    return hash(random.getstate()), repr(state) if key is None else (hash(key.tobytes()), state["pos"])
