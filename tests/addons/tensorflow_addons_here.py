"""TensorFlow Addons, as this package gives it."""

from keras_tpu_ext.addons import tfa as tfa
