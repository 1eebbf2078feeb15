"""Probes of a train step, on Keras 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import tensorflow as tf

from keras_tpu_ext._runtime.common.flops import FlopsCount
from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext._runtime.common.protocols import OpenedStrategy
from keras_tpu_ext._runtime.common.types import Array, Nest
from keras_tpu_ext._runtime.compat.keras2 import keras
from keras_tpu_ext._runtime.keras2 import optimizer as optimizers
from keras_tpu_ext._runtime.keras2.autograph import with_autograph
from keras_tpu_ext._runtime.tensorflow import flops, lowering
from keras_tpu_ext._runtime.tensorflow.executions import intercept_executions as intercept_executions
from keras_tpu_ext._runtime.training.overflow import unwatch_overflow as unwatch_overflow
from keras_tpu_ext._runtime.training.overflow import watch_overflow as watch_overflow

_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")

_T = TypeVar("_T")


def count_flops(model: tf.keras.Model, batch: Nest, batch_size: int) -> FlopsCount:
    """Count the FLOPs of a train step; see `common/protocols.py`."""
    return flops.count_flops(model, batch, batch_size, with_autograph)


def call_abstractly(function: Callable[[], _T]) -> _T:
    """Call a function; here variables always have values. See `common/protocols.py`."""
    return function()


def lower_step(
    model: tf.keras.Model, batch: tuple[Nest, ...], opened: OpenedStrategy, device_kind: str
) -> LoweredStep:
    """Lower the train step that `fit` would run; see `common/protocols.py`."""
    return lowering.lower_step(model, batch, opened.num_replicas, build=_build, as_keras_traces=with_autograph)


def _build(model: tf.keras.Model, specs: Nest, step: lowering.Step) -> None:
    """Trace the step once, as `fit` does, to create the missing variables."""

    def on_leaves(*leaves: tf.Tensor) -> Nest:
        return step(tf.nest.pack_sequence_as(specs, leaves))

    tf.function(with_autograph(on_leaves)).get_concrete_function(*tf.nest.flatten(specs))


class GradientRecorder(keras.optimizers.Optimizer):
    """An optimizer that records the last gradient of each variable, and updates no variable."""

    def __init__(self, **clipping: float | None) -> None:
        super().__init__(name="gradient_recorder", **clipping)
        self._learning_rate = self._build_learning_rate(1.0)
        self.recorded: list[tf.Variable] = []

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        """Create a slot for the gradient of each variable."""
        super().build(var_list)
        if not self.recorded:
            self.recorded = [self.add_variable_from_reference(variable, "recorded") for variable in var_list]

    def update_step(self, gradient: tf.Tensor | tf.IndexedSlices, variable: tf.Variable) -> None:
        """Record `gradient`; slices of the same row add up."""
        recorded = self.recorded[self._index_dict[self._var_key(variable)]]
        recorded.assign(tf.zeros_like(recorded))
        if isinstance(gradient, tf.IndexedSlices):
            recorded.scatter_add(gradient)
        else:
            recorded.assign_add(tf.cast(gradient, recorded.dtype))


def record_gradients(model: tf.keras.Model) -> Callable[[], list[Array] | None]:
    """Replace the optimizer by a recorder with the same clipping; see `common/protocols.py`."""
    own = model.optimizer
    inner = getattr(own, "inner_optimizer", own)
    recorder = GradientRecorder(**{name: getattr(inner, name, None) for name in _CLIPPING})
    model.optimizer = recorder
    if optimizers.scales(own):
        model.optimizer = keras.mixed_precision.LossScaleOptimizer(
            recorder, own.dynamic, own.initial_scale, own.dynamic_growth_steps
        )

    def recorded() -> list[Array] | None:
        if not recorder.recorded or not int(recorder.iterations.numpy()):
            return None
        return [value.numpy() for value in recorder.recorded]

    return recorded
