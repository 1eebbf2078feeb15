"""Callbacks for `model.fit`."""

from keras_tpu_ext.callbacks.throughput import Throughput as Throughput
