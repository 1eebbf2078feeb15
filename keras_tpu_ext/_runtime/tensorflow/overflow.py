"""Records of non-finite gradients on TensorFlow replicas."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Variable
from keras_tpu_ext._runtime.compat import new_variable, path_of
from keras_tpu_ext._runtime.tensorflow.replicas import assign_replicated
from keras_tpu_ext._runtime.tensorflow.variables import values_of_replicas
from keras_tpu_ext._runtime.training.overflow import OverflowWatch


class ReplicatedOverflowWatch(OverflowWatch):
    """An `OverflowWatch` in which every replica records its own overflows."""

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        self._groups: dict[tuple[int, ...], tuple[list[str], Variable]] = {}

    def note(self, gradients: Sequence[tf.Tensor | tf.IndexedSlices | None], variables: Sequence[Variable]) -> None:
        """Record which of one replica's gradients are not finite; call it in a replica."""
        _, last = self._group(variables)
        number = tf.convert_to_tensor(self.num_updates) + 1
        bad = [tf.constant(False) if gradient is None else _overflows(gradient) for gradient in gradients]
        last.assign(tf.where(tf.stack(bad), number, tf.convert_to_tensor(last)))
        assign_replicated(self.num_updates, number)

    def _notes(self) -> list[tuple[list[str], int | None, list[int]]]:
        groups = [(paths, values_of_replicas(last)) for paths, last in self._groups.values()]
        return [(paths, replica, list(updates)) for paths, every in groups for replica, updates in enumerate(every)]

    def _group(self, variables: Sequence[Variable]) -> tuple[list[str], Variable]:
        key = tuple(id(variable) for variable in variables)
        if key not in self._groups:
            with tf.init_scope():
                last = new_variable(tf.zeros([len(key)], tf.int32), "int32", "last_overflow", per_replica=True)
            self._groups[key] = ([path_of(variable) for variable in variables], last)
        return self._groups[key]


def _overflows(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.logical_not(tf.reduce_all(tf.math.is_finite(values)))
