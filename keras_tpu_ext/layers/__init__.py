"""Layers for models that train on TPUs."""

from keras_tpu_ext.layers.batch_normalization import BatchNormalization as BatchNormalization
