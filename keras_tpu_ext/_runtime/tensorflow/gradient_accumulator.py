"""Gradient accumulation under `tf.distribute`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Variable
from keras_tpu_ext._runtime.compat import new_variable
from keras_tpu_ext._runtime.tensorflow.replicas import assign_replicated, gather_everywhere, native
from keras_tpu_ext._runtime.training.step_state import BaseGradientAccumulator


class GradientAccumulator(BaseGradientAccumulator):
    """Sums of gradients over several batches, each replica its own; they meet once, when the window is full."""

    def _make_sums(self, variables: Sequence[Variable]) -> None:
        with tf.init_scope():
            self.position = new_variable(0, "int32", "position")
            self.weight = new_variable(0.0, "float32", "weight")
            self.local_sums = [
                new_variable(tf.zeros(variable.shape, variable.dtype), variable.dtype, f"sum_{i}", per_replica=True)
                for i, variable in enumerate(variables)
            ]

    def add(self, gradients: Sequence[Any], weight: tf.Tensor, factor: tf.Tensor) -> None:
        """Add one batch; call it in a replica.

        Args:
            gradients: One a variable; `None` where there is none.
            weight: What the batch counts for in the window.
            factor: What its gradients are multiplied by: the weight, over the scale of the loss.
        """
        for total, gradient in zip(self.local_sums, gradients, strict=True):
            if gradient is not None:
                dense = tf.convert_to_tensor(gradient)
                total.assign_add(dense * tf.cast(factor, dense.dtype))
        assign_replicated(self.weight, tf.convert_to_tensor(self.weight) + tf.cast(weight, tf.float32))
        assign_replicated(self.position, tf.convert_to_tensor(self.position) + 1)

    def is_full(self) -> tf.Tensor:
        """Return whether the window has all its batches."""
        return tf.convert_to_tensor(self.position) >= self.steps

    def has_batches(self) -> tf.Tensor:
        """Return whether the window has any batch."""
        return tf.convert_to_tensor(self.position) > 0

    def take(self) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return this replica's sums and the weight of all its batches, and start anew."""
        sums = [tf.convert_to_tensor(total) for total in self.local_sums]
        weight = tf.convert_to_tensor(self.weight)
        for total in self.local_sums:
            total.assign(tf.zeros(total.shape, total.dtype))
        assign_replicated(self.weight, 0.0)
        assign_replicated(self.position, 0)
        return sums, weight

    def save_own_variables(self, store: Any) -> None:
        """Save the sums of every replica, so that going on after loading is going on.

        Where several processes train together, all of them must save if the window has begun: each has some sums.
        """
        if not self.targets:
            return
        begun = bool(int(self.position.numpy()))
        store["position"], store["weight"] = self.position.numpy(), self.weight.numpy()
        for i, total in enumerate(self.local_sums):
            store[f"sum_{i}"] = values_of_replicas(total) if begun else _zeros_of_replicas(total)

    def load_own_variables(self, store: Any) -> None:
        """Load what was saved; on another number of replicas the first one takes all sums."""
        if not self.targets or "position" not in store:
            return
        self.position.assign(store["position"][()])
        self.weight.assign(store["weight"][()])
        for i, total in enumerate(self.local_sums):
            saved, replicas = np.asarray(store[f"sum_{i}"]), len(_zeros_of_replicas(total))
            if len(saved) != replicas:
                saved = np.stack([saved.sum(axis=0)] + [np.zeros_like(saved[0])] * (replicas - 1))
            _assign_to_replicas(total, saved)


def values_of_replicas(variable: Variable) -> np.ndarray:
    """Return the values that replicas have of a variable which they do not share, the replicas of all processes.

    Where several processes train together, all of them must call it.
    """
    own = native(variable)
    if not isinstance(own, tf.distribute.DistributedValues):
        return np.stack([own.numpy()])
    if len(own.values) == own.distribute_strategy.num_replicas_in_sync:
        return np.stack([part.numpy() for part in own.values])
    strategy, parts = own.distribute_strategy, iter(own.values)
    mine = strategy.experimental_distribute_values_from_function(
        lambda _: tf.convert_to_tensor(next(parts))[tf.newaxis]
    )
    return gather_everywhere(strategy, mine)


def _assign_to_replicas(variable: Variable, values: np.ndarray) -> None:
    """Give each replica of this process its own of `values`, which are those of all replicas."""
    mirrored = native(variable)
    if not isinstance(mirrored, tf.distribute.DistributedValues):
        mirrored.assign(values[0])
        return
    strategy = mirrored.distribute_strategy

    def of_replica(context: tf.distribute.ValueContext) -> Any:
        return tf.convert_to_tensor(values[context.replica_id_in_sync_group])

    own = strategy.experimental_local_results(strategy.experimental_distribute_values_from_function(of_replica))
    for part, value in zip(mirrored.values, own, strict=True):
        part.assign(value)


def _zeros_of_replicas(variable: Variable) -> np.ndarray:
    """Return zeros in the place of what `values_of_replicas` returns."""
    own = native(variable)
    needs_gather = isinstance(own, tf.distribute.DistributedValues)
    replicas = own.distribute_strategy.num_replicas_in_sync if needs_gather else 1
    return np.zeros([replicas, *variable.shape], tf.as_dtype(variable.dtype).as_numpy_dtype)
