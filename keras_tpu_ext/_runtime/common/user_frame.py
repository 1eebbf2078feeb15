"""Warnings about the user's line."""

from __future__ import annotations

import inspect
import warnings

from keras_tpu_ext.errors import KteWarning

_NOT_THE_USERS = ("keras_tpu_ext", "keras", "tf_keras", "tensorflow", "jax", "contextlib")


def warn(text: str, kind: type[Warning] = KteWarning) -> None:
    """Warn at the innermost line outside this package and the frameworks."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, kind, stacklevel=level)
