"""A train step as a program for TPUs, on Keras 2."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext._runtime.keras2.autograph import converting
from keras_tpu_ext._runtime.tensorflow import lowering as _tf_lowering


def lower_step(model: Any, batch: Any, replicas: int) -> LoweredStep:
    """Return the train step that `fit` would run; see `common/protocols.py`."""
    return _tf_lowering.lower_step(model, batch, replicas, build=_build, as_keras_traces=converting)


def _build(model: Any, specs: Any, step: Any) -> None:
    """Trace the step once as `fit` does, which makes what variables are not there yet."""

    def on_leaves(*leaves: Any) -> Any:
        return step(tf.nest.pack_sequence_as(specs, leaves))

    tf.function(converting(on_leaves)).get_concrete_function(*tf.nest.flatten(specs))
