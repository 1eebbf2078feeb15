"""A strategy of N replicas for the compiler only: its reductions are XLA's collectives, and nothing can be run.

So one replica's step is lowered with its collectives. As under `TPUStrategy`, each tensor is reduced
separately, and a gather is a sum over buffers that are zero elsewhere.
"""

from __future__ import annotations

import contextlib
from typing import Any, TypeAlias

import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.types import Nest

_DefaultExtended: Any = private("tensorflow.python.distribute.distribute_lib:_DefaultDistributionExtended")
_xla_all_reduce: Any = private("tensorflow.compiler.tf2xla.ops.gen_xla_ops:xla_all_reduce")
_xla_dynamic_update_slice: Any = private("tensorflow.compiler.tf2xla.ops.gen_xla_ops:xla_dynamic_update_slice")
_xla_replica_id: Any = private("tensorflow.compiler.tf2xla.ops.gen_xla_ops:xla_replica_id")

_Options: TypeAlias = "tf.distribute.experimental.CommunicationOptions"


class CompileOnlyStrategy(tf.distribute.Strategy):
    """A strategy whose functions are lowered and never run.

    It has plain variables, created outside its scope.
    """

    def __init__(self, replicas: int) -> None:
        super().__init__(_Extended(self, replicas))


class _Extended(_DefaultExtended):
    def __init__(self, strategy: tf.distribute.Strategy, replicas: int) -> None:
        super().__init__(strategy)
        self._replicas = replicas

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._replicas

    @property
    def worker_devices(self) -> tuple[str, ...]:
        return ("",) * self._replicas

    def _scope(self, strategy: tf.distribute.Strategy) -> contextlib.AbstractContextManager[tf.distribute.Strategy]:
        return contextlib.nullcontext(strategy)  # it creates no variables

    def _reduce_to(
        self, reduce_op: tf.distribute.ReduceOp, value: Nest, destinations: tf.Tensor, options: _Options
    ) -> Nest:
        if isinstance(value, tf.IndexedSlices):
            value = tf.convert_to_tensor(value)
        if not isinstance(value, (tf.Tensor, tf.Variable)):
            return value
        total = self._all_reduce(tf.convert_to_tensor(value))
        return total / tf.cast(self._replicas, total.dtype) if reduce_op == tf.distribute.ReduceOp.MEAN else total

    def _gather_to_implementation(
        self, value: tf.Tensor, destinations: tf.Tensor, axis: int, options: _Options
    ) -> tf.Tensor:
        value = tf.convert_to_tensor(value)
        size, rank = value.shape[axis], value.shape.rank
        shape = [*value.shape[:axis], size * self._replicas, *value.shape[axis + 1 :]]
        begin = [0] * axis + [_xla_replica_id() * size] + [0] * (rank - axis - 1)
        padded = _xla_dynamic_update_slice(tf.zeros(shape, value.dtype), value, tf.stack(begin))
        return self._all_reduce(padded)

    def _all_reduce(self, value: tf.Tensor) -> tf.Tensor:
        numeric = tf.cast(value, tf.int32) if value.dtype == tf.bool else value
        group = [list(range(self._replicas))]
        total = _xla_all_reduce(input=numeric, group_assignment=group, reduce_op="Add", mode="CrossReplica")
        total.set_shape(value.shape)
        return tf.cast(total, tf.bool) if value.dtype == tf.bool else total
