"""Keras 2 on TensorFlow: TensorFlow 2.15, or tf-keras beside a newer TensorFlow."""

import dataclasses

from keras_tpu_ext._runtime.common import protocols
from keras_tpu_ext._runtime.compat.keras2 import keras as keras
from keras_tpu_ext._runtime.compat.keras2 import tree as tree
from keras_tpu_ext._runtime.keras2 import ops as _ops
from keras_tpu_ext._runtime.keras2 import probes as _probes
from keras_tpu_ext._runtime.keras2 import training_state as _training_state
from keras_tpu_ext._runtime.keras2.addons import import_addons as import_addons
from keras_tpu_ext._runtime.keras2.step import TrainStep as TrainStep
from keras_tpu_ext._runtime.tensorflow import batch as _batch
from keras_tpu_ext._runtime.tensorflow import devices as _devices
from keras_tpu_ext._runtime.tensorflow import message_terms as _message_terms
from keras_tpu_ext._runtime.tensorflow import progress as _progress
from keras_tpu_ext._runtime.training import models as _models
from keras_tpu_ext._runtime.training import policies as _policies
from keras_tpu_ext._runtime.training.loss_scale import LossScale as LossScale

batch: protocols.Batch = _batch
devices: protocols.Devices = _devices
models: protocols.Models = _models
ops: protocols.Ops = _ops
policies: protocols.Policies = _policies
probes: protocols.Probes = _probes
progress: protocols.Progress = _progress
training_state: protocols.TrainingState = _training_state
PyDataset = keras.utils.Sequence
message_terms = dataclasses.replace(
    _message_terms, plain_model="its step on replicas is a mean of each replica's own mean", keras="Keras 2"
)
