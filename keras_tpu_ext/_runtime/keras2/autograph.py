"""Python's `if`, `for` and `len` on tensors, which Keras 2 lets AutoGraph convert in code of the user's.

The loop here is not converted, nor are the steps of this package; layers, losses and metrics ask TensorFlow whether
they are called from what is converted, and are converted only then.

Private names of TensorFlow that this module leans on (tests/_runtime/test_keras2_private_names.py watches them):
`python.autograph.core.ag_ctx` with `ControlStatusCtx` and `Status`; `__internal__.autograph.tf_convert` and
`control_status_ctx`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx

_autograph: Any = tf.__internal__.autograph


def converting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, which is not converted, in whose calls code of the user's is."""

    def as_if_converted(*args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            return function(*args, **kwargs)
        with ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED):
            return function(*args, **kwargs)

    wrapped: Callable[..., Any] = tf.autograph.experimental.do_not_convert(as_if_converted)
    return wrapped


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` of the user's, converted where it is called from what is converted."""
    convert: Callable[..., Any] = _autograph.tf_convert(function, _autograph.control_status_ctx())
    return convert
