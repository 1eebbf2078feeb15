"""Probes of a train step, on TensorFlow."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import tensorflow as tf

from keras_tpu_ext._runtime.tensorflow.compiles import TracingWatch
from keras_tpu_ext._runtime.tensorflow.executions import intercept_executions as intercept_executions
from keras_tpu_ext._runtime.tensorflow.flops import count_flops as count_flops
from keras_tpu_ext._runtime.tensorflow.lowering import lower_programs as lower_programs
from keras_tpu_ext._runtime.tensorflow.lowering import lower_step as lower_step

_T = TypeVar("_T")
watch_compiles = TracingWatch


def call_abstractly(function: Callable[[], _T]) -> _T:
    """Call a function; here variables always have values. See `training/protocols.py`."""
    return function()


def start_profiler(directory: str) -> None:
    """Start TensorFlow's profiler."""
    try:
        tf.profiler.experimental.start(directory)
    except tf.errors.AlreadyExistsError as error:
        raise RuntimeError(error.message) from error


def stop_profiler() -> None:
    """Stop the profiler, and write what it recorded."""
    tf.profiler.experimental.stop()


def profiled_step(name: str, step: int) -> AbstractContextManager[object]:
    """Return a context whose span a running profiler records under a name, with the number of a step."""
    return tf.profiler.experimental.Trace(name, step_num=step, _r=1)  # _r: a step, to TensorBoard
