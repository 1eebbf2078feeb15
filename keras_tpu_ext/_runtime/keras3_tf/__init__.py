"""Keras 3 on TensorFlow: the reference runtime."""

import functools

from keras_tpu_ext._runtime.compat.keras3_tensorflow import sum_when_read as _sum_when_read
from keras_tpu_ext._runtime.keras3 import import_addons
from keras_tpu_ext._runtime.keras3.tpu_operations import tpu_operations
from keras_tpu_ext._runtime.keras3_tf import training_state
from keras_tpu_ext._runtime.keras3_tf.program import TrainStep
from keras_tpu_ext._runtime.tensorflow import batch, devices, message_terms, ops, probes
from keras_tpu_ext._runtime.tensorflow.event_file import event_file_class
from keras_tpu_ext._runtime.training.protocols import Runtime

_sum_when_read()

runtime = Runtime(
    batch=batch,
    devices=devices,
    ops=ops,
    probes=probes,
    training_state=training_state,
    TrainStep=TrainStep,
    import_addons=import_addons,
    event_file_class=event_file_class,
    tpu_operations=functools.partial(tpu_operations, batch),
    remat=None,
    saved_programs=None,
    message_terms=message_terms,
)
