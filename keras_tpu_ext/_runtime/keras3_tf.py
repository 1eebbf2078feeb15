"""Keras 3 on TensorFlow: the reference runtime."""

import keras as keras

from keras_tpu_ext._runtime._tf_counts import examples_seen as examples_seen
from keras_tpu_ext._runtime._tf_counts import num_replicas as num_replicas
from keras_tpu_ext._runtime._tf_counts import train_steps as train_steps
