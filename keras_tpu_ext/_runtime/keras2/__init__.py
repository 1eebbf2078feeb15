"""Keras 2 on TensorFlow: TensorFlow 2.15, or tf-keras beside a newer TensorFlow."""

import dataclasses
from typing import cast

from keras_tpu_ext._runtime.common.protocols import Ops, Runtime
from keras_tpu_ext._runtime.keras2 import training_state
from keras_tpu_ext._runtime.keras2.addons import import_addons
from keras_tpu_ext._runtime.keras2.step import TrainStep
from keras_tpu_ext._runtime.tensorflow import batch, devices, message_terms, ops, probes, progress
from keras_tpu_ext._runtime.training import models, policies

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
    tpu_operations=None,
    remat=None,
    saved_programs=None,
    message_terms=dataclasses.replace(
        message_terms, plain_model="its step on replicas is a mean of each replica's own mean", keras="Keras 2"
    ),
)
