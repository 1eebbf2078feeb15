"""What differs between versions of Keras 3 on TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_tpu_ext._runtime.common.patches import install
from keras_tpu_ext._runtime.common.types import Optimizer
from keras_tpu_ext._runtime.compat.keras3 import VERSION


def count_step(optimizer: Optimizer) -> None:
    """Count a step if Keras leaves that to the method that applies gradients, as it does before 3.10."""
    if VERSION < (3, 10):
        optimizer._iterations.assign_add(1)


def sum_when_read() -> None:
    """Make Keras before 3.10 sum over replicas when a variable is read, as later versions do, not when written."""
    if VERSION < (3, 10):
        install([(keras.Variable, "keras.Variable._initialize", _initialize)])


def _initialize(stock: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(stock)
    def initialize(variable: keras.Variable, value: Any) -> None:
        if variable.aggregation != "sum":
            stock(variable, value)
            return
        variable._value = tf.Variable(
            value,
            dtype=variable.dtype,
            trainable=variable.trainable,
            name=variable.name,
            aggregation=tf.VariableAggregation.SUM,
            synchronization=tf.VariableSynchronization.ON_READ,
        )

    return initialize
