"""A train step as a program for TPUs, on Keras 3 and TensorFlow.

Private names of Keras that this module leans on (tests/_runtime/test_tf_private_names.py watches them):
`Trainer._symbolic_build`.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext._runtime.tensorflow import lowering as _tf_lowering
from keras_tpu_ext._runtime.training.step_state import step_state_of


def lower_step(model: Any, batch: Any, replicas: int) -> LoweredStep:
    """Return the train step that `fit` would run; see `common/protocols.py`."""
    convert = tf.autograph.experimental.do_not_convert
    return _tf_lowering.lower_step(model, batch, replicas, build=_build, as_keras_traces=convert)


def _build(model: Any, specs: Any, step: Any) -> None:
    model._symbolic_build(data_batch=specs)
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    if step_state_of(model) is not None:
        model._build_accumulator()
