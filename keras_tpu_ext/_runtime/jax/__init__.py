"""Keras 3 on JAX, which today's TPU images offer; TensorFlow need not be installed."""

import keras as keras

from keras_tpu_ext._runtime.common import protocols
from keras_tpu_ext._runtime.jax import batch as _batch
from keras_tpu_ext._runtime.jax import devices as _devices
from keras_tpu_ext._runtime.jax import ops as _ops
from keras_tpu_ext._runtime.jax import probes as _probes
from keras_tpu_ext._runtime.jax import progress as _progress
from keras_tpu_ext._runtime.jax import training_state as _training_state
from keras_tpu_ext._runtime.jax.step import TrainStep as TrainStep
from keras_tpu_ext._runtime.keras3.addons import import_addons as import_addons
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
PyDataset = keras.utils.PyDataset
tree = keras.tree
message_terms = protocols.MessageTerms(
    framework="JAX",
    no_gpu="check that `nvidia-smi` shows one and that this JAX was installed with CUDA, pip install 'jax[cuda12]'",
    plain_model="Keras gives every device an equal part of a batch, and fails on one that cannot be split evenly",
)
