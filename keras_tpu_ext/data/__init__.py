"""Helpers for `tf.data` input pipelines."""

from keras_tpu_ext.data.padding import pad_batches as pad_batches
