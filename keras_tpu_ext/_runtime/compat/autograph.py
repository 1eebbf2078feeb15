"""AutoGraph, which converts Python's `if`, `for` and `len` on tensors in user code: on Keras 2, not on Keras 3.

The loop and the steps of this package are not converted. Layers, losses and metrics are converted only if their
caller is, according to TensorFlow's control status.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.select import chosen

_ControlStatusCtx: Any = private("tensorflow.python.autograph.core.ag_ctx:ControlStatusCtx")
_Status: Any = private("tensorflow.python.autograph.core.ag_ctx:Status")
_CONVERTS = chosen() == "keras2_tf"

_P = ParamSpec("_P")
_R = TypeVar("_R")


def as_keras_traces(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap a function that is not converted itself, so that the user code that it calls is as under Keras."""

    def as_if_converted(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if tf.executing_eagerly() or not _CONVERTS:
            return function(*args, **kwargs)
        with _ControlStatusCtx(_Status.ENABLED):
            return function(*args, **kwargs)

    wrapped: Callable[_P, _R] = tf.autograph.experimental.do_not_convert(as_if_converted)
    return wrapped


def converted(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Convert a user's function if its caller is converted."""
    autograph = tf.__internal__.autograph
    convert: Callable[_P, _R] = autograph.tf_convert(function, autograph.control_status_ctx())
    return convert


def inlined(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the code of a `tf.function`, in whose graph replicas cannot wait for each other, converted as there."""
    code = getattr(function, "python_function", None)
    if code is None:
        return function
    with _ControlStatusCtx(_Status.ENABLED):
        convert = converted(code)
    return functools.wraps(code)(lambda *args, **kwargs: convert(*args, **kwargs))
