"""What a variable holds on TensorFlow, also while a step that uses it is traced."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime._keras import asks_for_shapes
from keras_tpu_ext._runtime._tf_replicas import native


def value_at_call(variable: Any) -> Any:
    """Return what `variable` holds, while a layer is called; `None` where only shapes are asked for."""
    if asks_for_shapes():
        return None
    with tf.init_scope():
        return native(variable).numpy() if tf.executing_eagerly() else None
