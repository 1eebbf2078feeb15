"""Whose gradients were not finite: a note of each variable and replica, kept while a callback asks for it.

Private names that this module leans on: of `TPUModel`, if the model is one, `_step_state`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.protocols import Overflow
from keras_tpu_ext._runtime.compat import LossScaleOptimizer, keras, new_variable, path_of
from keras_tpu_ext._runtime.tensorflow.replicas import assign_replicated
from keras_tpu_ext._runtime.tensorflow.state import values_of_replicas
from keras_tpu_ext._runtime.training.progress import train_steps


class OverflowWatch(keras.layers.Layer):
    """For every replica and variable the last update whose gradient was not finite.

    Args:
        steps: Number of steps that the optimizer had taken when the watch began.
    """

    def __init__(self, steps: int) -> None:
        super().__init__(name="overflow_watch", dtype="float32")
        self.built = True
        self.count = new_variable(0, "int32", "updates")
        self._groups: dict[tuple[int, ...], tuple[list[str], Any]] = {}
        self._seen = 0
        self._steps_before = steps

    def skipped(self, steps: int) -> int:
        """Return how many updates were no step, given how many steps the optimizer has taken by now."""
        return int(self.count.numpy()) - (steps - self._steps_before)

    def note(self, gradients: Any, variables: Any) -> None:
        """Note what of one replica's gradients is not finite; call it in a replica."""
        _, last = self._group(variables)
        number = tf.convert_to_tensor(self.count) + 1
        bad = [tf.constant(False) if gradient is None else _is_bad(gradient) for gradient in gradients]
        last.assign(tf.where(tf.stack(bad), number, tf.convert_to_tensor(last)))
        assign_replicated(self.count, number)

    def read(self) -> list[Overflow]:
        """Return what was noted since the last reading: the last overflow of each variable on each replica.

        Where several processes train together, all of them must call it.
        """
        found = []
        for paths, last in self._groups.values():
            for replica, updates in enumerate(values_of_replicas(last)):
                for update in sorted({int(number) for number in updates if number > self._seen}):
                    those = tuple(path for path, number in zip(paths, updates, strict=True) if number == update)
                    found.append(Overflow(update, replica, those, len(paths)))
        self._seen = int(self.count.numpy())
        return sorted(found)

    def save_own_variables(self, store: Any) -> None:
        """Save nothing: notes are no state of the model, though Keras finds them when a callback saves it."""

    def load_own_variables(self, store: Any) -> None:
        """Load nothing."""

    def _group(self, variables: Any) -> tuple[list[str], Any]:
        key = tuple(id(variable) for variable in variables)
        if key not in self._groups:
            with tf.init_scope():
                last = new_variable(tf.zeros([len(key)], tf.int32), "int32", "last_overflow", per_replica=True)
            self._groups[key] = ([path_of(variable) for variable in variables], last)
        return self._groups[key]


def watch_overflow(model: Any) -> Callable[[], list[Overflow]] | None:
    """Let the train step note overflows from now on; call it before the step is traced, or it is traced anew.

    Returns:
        A function that returns what was noted since it was called last, or `None` where the model keeps no notes.
    """
    state = getattr(model, "_step_state", None)
    if state is None:
        return None
    with model.distribute_strategy.scope():
        watch = OverflowWatch(train_steps(model) or 0)
    _set_watch(model, watch)
    return watch.read


def unwatch_overflow(model: Any) -> None:
    """Let the train step note nothing any more."""
    if getattr(getattr(model, "_step_state", None), "watch", None) is not None:
        _set_watch(model, None)


def skipped_steps(model: Any) -> int | None:
    """Return how many steps were skipped since `compile`, or `None` where nothing counts them.

    Where a `LossScaleOptimizer` does the skipping, they are counted while there is a watch.
    """
    state = getattr(model, "_step_state", None)
    if state is None:
        return None
    if state.loss_scale is not None:
        return int(state.skipped_steps.numpy())
    is_counted = isinstance(model.optimizer, LossScaleOptimizer) and state.accumulation_steps == 1
    return state.watch.skipped(train_steps(model) or 0) if is_counted and state.watch is not None else None


def _set_watch(model: Any, watch: Any) -> None:
    model._step_state.__dict__["watch"] = watch  # past Keras's tracking: it is no state to save
    model.make_train_function(force=True)


def _is_bad(gradient: Any) -> Any:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.logical_not(tf.reduce_all(tf.math.is_finite(values)))
