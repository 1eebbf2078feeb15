"""The user's line that a warning is about."""

from __future__ import annotations

import inspect

_NOT_THE_USERS = ("keras_tpu_ext", "keras", "tf_keras", "contextlib")


def user_stack_level() -> int:
    """Return the `stacklevel` of a warning of the caller at the innermost frame outside this package and Keras."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS:
        frame, level = frame.f_back, level + 1
    return level
