"""Keras 3 on TensorFlow: the reference runtime."""

import functools
from typing import cast

from keras_tpu_ext._runtime.common.protocols import Ops, Runtime
from keras_tpu_ext._runtime.compat.keras3_tensorflow import sum_when_read as _sum_when_read
from keras_tpu_ext._runtime.keras3 import import_addons
from keras_tpu_ext._runtime.keras3.tpu_operations import tpu_operations
from keras_tpu_ext._runtime.keras3_tf import training_state
from keras_tpu_ext._runtime.keras3_tf.step import TrainStep
from keras_tpu_ext._runtime.tensorflow import batch, devices, message_terms, ops, probes, progress
from keras_tpu_ext._runtime.training import models, policies

_sum_when_read()

runtime = Runtime(
    batch=batch,
    devices=devices,
    models=models,
    ops=cast(Ops, ops),  # a type checker does not see the functions of `keras.ops`
    policies=policies,
    probes=probes,
    progress=progress,
    training_state=training_state,
    TrainStep=TrainStep,
    import_addons=import_addons,
    tpu_operations=functools.partial(tpu_operations, batch),
    remat=None,
    saved_programs=None,
    message_terms=message_terms,
)
