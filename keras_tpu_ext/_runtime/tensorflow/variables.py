"""Variables of which each replica has its own value."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Variable
from keras_tpu_ext._runtime.tensorflow.replicas import gather_everywhere, native


def is_per_replica(variable: Variable) -> bool:
    """Return whether each replica has its own value, and reading the variable elsewhere returns their sum or mean."""
    own = native(variable)
    return getattr(own, "synchronization", None) == tf.VariableSynchronization.ON_READ


def values_of_replicas(variable: Variable) -> np.ndarray:
    """Return the values that the replicas of all processes have of a variable which they do not share.

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


def assign_to_replicas(variable: Variable, values: np.ndarray) -> None:
    """Assign to each replica of this process its own element of `values`, which holds those of all replicas.

    If they come from a different number of replicas, the first replica gets their sum.
    """
    replicas = len(zeros_of_replicas(variable))
    if len(values) != replicas:
        values = np.stack([values.sum(axis=0)] + [np.zeros_like(values[0])] * (replicas - 1))
    mirrored = native(variable)
    if not isinstance(mirrored, tf.distribute.DistributedValues):
        mirrored.assign(values[0])
        return
    strategy = mirrored.distribute_strategy

    def of_replica(context: tf.distribute.ValueContext) -> tf.Tensor:
        return tf.convert_to_tensor(values[context.replica_id_in_sync_group])

    own = strategy.experimental_local_results(strategy.experimental_distribute_values_from_function(of_replica))
    for part, value in zip(mirrored.values, own, strict=True):
        part.assign(value)


def zeros_of_replicas(variable: Variable) -> np.ndarray:
    """Return zeros in the shape that `values_of_replicas` returns."""
    own = native(variable)
    needs_gather = isinstance(own, tf.distribute.DistributedValues)
    replicas = own.distribute_strategy.num_replicas_in_sync if needs_gather else 1
    return np.zeros([replicas, *variable.shape], tf.as_dtype(variable.dtype).as_numpy_dtype)
