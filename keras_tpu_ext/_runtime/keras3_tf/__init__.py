"""Keras 3 on TensorFlow: the reference runtime."""

import keras as keras

from keras_tpu_ext._runtime.common import protocols
from keras_tpu_ext._runtime.compat.keras3_tensorflow import sum_when_read as _sum_when_read
from keras_tpu_ext._runtime.keras3.addons import import_addons as import_addons
from keras_tpu_ext._runtime.keras3_tf import ops as _ops
from keras_tpu_ext._runtime.keras3_tf import probes as _probes
from keras_tpu_ext._runtime.keras3_tf import training_state as _training_state
from keras_tpu_ext._runtime.keras3_tf.step import TrainStep as TrainStep
from keras_tpu_ext._runtime.tensorflow import batch as _batch
from keras_tpu_ext._runtime.tensorflow import devices as _devices
from keras_tpu_ext._runtime.tensorflow import message_terms as message_terms
from keras_tpu_ext._runtime.tensorflow import progress as _progress
from keras_tpu_ext._runtime.training import models as _models
from keras_tpu_ext._runtime.training import policies as _policies
from keras_tpu_ext._runtime.training.loss_scale import LossScale as LossScale

_sum_when_read()

batch: protocols.Batch = _batch
devices: protocols.Devices = _devices
models: protocols.Models = _models
ops: protocols.Ops = _ops
policies: protocols.Policies = _policies
probes: protocols.Probes = _probes
progress: protocols.Progress = _progress
training_state: protocols.TrainingState = _training_state
PyDataset = keras.utils.PyDataset
tree = keras.tree
