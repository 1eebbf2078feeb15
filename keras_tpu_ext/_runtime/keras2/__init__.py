"""Keras 2 on TensorFlow: TensorFlow 2.15, or tf-keras beside a newer TensorFlow."""

import dataclasses

from keras_tpu_ext._runtime.keras2 import training_state
from keras_tpu_ext._runtime.keras2.addons import import_addons
from keras_tpu_ext._runtime.keras2.program import TrainStep
from keras_tpu_ext._runtime.tensorflow import batch, devices, message_terms, ops, probes
from keras_tpu_ext._runtime.tensorflow.event_file import event_file_class
from keras_tpu_ext._runtime.training.protocols import Runtime

runtime = Runtime(
    batch=batch,
    devices=devices,
    ops=ops,
    probes=probes,
    training_state=training_state,
    TrainStep=TrainStep,
    import_addons=import_addons,
    event_file_class=event_file_class,
    tpu_operations=None,
    remat=None,
    saved_programs=None,
    message_terms=dataclasses.replace(
        message_terms, plain_model="its step on replicas is a mean of each replica's own mean", keras="Keras 2"
    ),
)
