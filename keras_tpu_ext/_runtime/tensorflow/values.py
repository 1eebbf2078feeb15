"""What layers know of values on TensorFlow: what a variable holds while a step is traced, and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.tensorflow.replicas import native


def value_of(variable: Any) -> Any:
    """Return what `variable` holds as an array; `None` in a graph of TensorFlow 1, which has no values."""
    with tf.init_scope():
        return native(variable).numpy() if tf.executing_eagerly() else None


def with_shape(values: Any, shape: Sequence[int | None]) -> Any:
    """Return `values`, of which it is known that they have `shape`; `None` is for any size."""
    return tf.ensure_shape(values, shape)
