"""The accumulation window under `tf.distribute`, and assignments that every replica makes alike."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_tpu_ext._runtime._keras3_state import StepState
from keras_tpu_ext._runtime._keras3_window import GradientWindow
from keras_tpu_ext._runtime._tf_replicas import assign_everywhere, gather_everywhere


class ReplicatedStepState(StepState):
    """A `StepState` on replicas."""

    def _assign(self, variable: Any, value: Any) -> None:
        assign_everywhere(variable, value)

    def _make_window(self, optimizer: Any) -> Window:
        return Window(self.accumulation_steps, lambda: optimizer)


class Window(GradientWindow):
    """Sums of gradients over several batches, each replica its own; they meet once, when the window is full."""

    def build_for(self, variables: Any) -> None:
        """Make the sums for the gradients of `variables`, once."""
        if self.targets:
            return
        with tf.init_scope():
            self.position = self._variable("position", (), "int32")
            self.weight = self._variable("weight", (), "float32")
            self.local_sums = [
                self._variable(f"sum_{i}", variable.shape, variable.dtype, per_replica=True)
                for i, variable in enumerate(variables)
            ]
        self.__dict__["targets"] = list(variables)  # not to be tracked: they are the model's

    def add(self, gradients: Any, weight: Any, factor: Any) -> None:
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
        assign_everywhere(self.weight, tf.convert_to_tensor(self.weight) + tf.cast(weight, tf.float32))
        assign_everywhere(self.position, tf.convert_to_tensor(self.position) + 1)

    def is_full(self) -> Any:
        """Return whether the window has all its batches."""
        return tf.convert_to_tensor(self.position) >= self.steps

    def is_begun(self) -> Any:
        """Return whether the window has any batch."""
        return tf.convert_to_tensor(self.position) > 0

    def take(self) -> tuple[list[Any], Any]:
        """Return this replica's sums and the weight of all its batches, and start anew."""
        sums = [tf.convert_to_tensor(total) for total in self.local_sums]
        weight = tf.convert_to_tensor(self.weight)
        for total in self.local_sums:
            total.assign(tf.zeros(total.shape, total.dtype))
        assign_everywhere(self.weight, 0.0)
        assign_everywhere(self.position, 0)
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

    def _variable(self, name: str, shape: Any, dtype: str, per_replica: bool = False) -> Any:
        how = {"synchronization": "on_read", "aggregation": "sum"} if per_replica else {}
        how = how or {"aggregation": "only_first_replica"}
        return keras.Variable(tf.zeros(shape, dtype), trainable=False, name=name, dtype=dtype, **how)


def values_of_replicas(variable: Any) -> np.ndarray:
    """Return the values that replicas have of a variable which they do not share, the replicas of all processes.

    Where several processes train together, all of them must call it.
    """
    native = variable.value
    if not isinstance(native, tf.distribute.DistributedValues):
        return np.stack([native.numpy()])
    if len(native.values) == native.distribute_strategy.num_replicas_in_sync:
        return np.stack([part.numpy() for part in native.values])
    strategy, parts = native.distribute_strategy, iter(native.values)
    own = strategy.experimental_distribute_values_from_function(
        lambda _: tf.convert_to_tensor(next(parts))[tf.newaxis]
    )
    return gather_everywhere(strategy, own)


def _assign_to_replicas(variable: Any, values: np.ndarray) -> None:
    """Give each replica of this process its own of `values`, which are those of all replicas."""
    native = variable.value
    if not isinstance(native, tf.distribute.DistributedValues):
        native.assign(values[0])
        return
    strategy = native.distribute_strategy

    def of_replica(context: tf.distribute.ValueContext) -> Any:
        return tf.convert_to_tensor(values[context.replica_id_in_sync_group])

    own = strategy.experimental_local_results(strategy.experimental_distribute_values_from_function(of_replica))
    for part, value in zip(native.values, own, strict=True):
        part.assign(value)


def _zeros_of_replicas(variable: Any) -> np.ndarray:
    """Return zeros in the place of what `values_of_replicas` returns."""
    native = variable.value
    is_spread = isinstance(native, tf.distribute.DistributedValues)
    replicas = native.distribute_strategy.num_replicas_in_sync if is_spread else 1
    return np.zeros([replicas, *variable.shape], tf.as_dtype(variable.dtype).as_numpy_dtype)
