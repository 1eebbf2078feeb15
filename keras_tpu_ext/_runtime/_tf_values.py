"""What a variable holds on TensorFlow, also while a step that uses it is traced."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime._tf_replicas import native


def value_of(variable: Any) -> Any:
    """Return what `variable` holds as an array; `None` in a graph of TensorFlow 1, which has no values."""
    with tf.init_scope():
        return native(variable).numpy() if tf.executing_eagerly() else None
