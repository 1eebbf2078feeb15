"""Probes of a train step, on Keras 3 and TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import keras
import tensorflow as tf

from keras_tpu_ext._runtime.common.flops import FlopsCount
from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext._runtime.common.protocols import OpenedStrategy
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.keras3.probes import record_gradients as record_gradients
from keras_tpu_ext._runtime.tensorflow import flops, lowering
from keras_tpu_ext._runtime.tensorflow.executions import intercept_executions as intercept_executions
from keras_tpu_ext._runtime.training.overflow import unwatch_overflow as unwatch_overflow
from keras_tpu_ext._runtime.training.overflow import watch_overflow as watch_overflow
from keras_tpu_ext._runtime.training.step_state import step_state_of

# Keras 3 turns AutoGraph off.
_as_keras_traces = tf.autograph.experimental.do_not_convert

_T = TypeVar("_T")


def count_flops(model: keras.Model, batch: Nest, batch_size: int) -> FlopsCount:
    """Count the FLOPs of a train step; see `common/protocols.py`."""
    return flops.count_flops(model, batch, batch_size, _as_keras_traces)


def call_abstractly(function: Callable[[], _T]) -> _T:
    """Call a function; here variables always have values. See `common/protocols.py`."""
    return function()


def lower_step(model: keras.Model, batch: tuple[Nest, ...], opened: OpenedStrategy, device_kind: str) -> LoweredStep:
    """Lower the train step that `fit` would run; see `common/protocols.py`."""
    return lowering.lower_step(model, batch, opened.num_replicas, build=_build, as_keras_traces=_as_keras_traces)


def _build(model: keras.Model, specs: Nest, step: lowering.Step) -> None:
    model._symbolic_build(data_batch=specs)
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    if step_state_of(model) is not None:
        model._kte.build_accumulator()
