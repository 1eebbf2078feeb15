"""Enter a strategy of TensorFlow, and split datasets over its replicas."""

from __future__ import annotations

from contextlib import AbstractContextManager

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext.errors import ArgumentError, ScopeError


def scope(strategy: tf.distribute.Strategy) -> AbstractContextManager[tf.distribute.Strategy]:
    """Return the context in which variables and models are made on `strategy`.

    Raises:
        ScopeError: If called inside the scope of another strategy.
    """
    outer = tf.distribute.get_strategy()
    if tf.distribute.has_strategy() and outer is not strategy:
        raise ScopeError(
            f"A block for {_describe(strategy)} was opened inside a block for {_describe(outer)}, and a model can "
            "belong to one strategy only. Leave the outer block first, or open the same scope again inside it."
        )
    return strategy.scope()


def distribute(strategy: tf.distribute.Strategy, dataset: tf.data.Dataset) -> tf.distribute.DistributedDataset:
    """Return `dataset` with each batch split over the replicas of `strategy`.

    Raises:
        ArgumentError: If `dataset` is no `tf.data.Dataset`, or is not batched.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise ArgumentError(
            f"distribute needs a tf.data.Dataset; got {type(dataset).__name__}. Write "
            "scope.distribute(tf.data.Dataset.from_tensor_slices(data).batch(scope.global_batch_size(32)))."
        )
    if any(getattr(spec, "shape", None) == () for spec in tf.nest.flatten(dataset.element_spec)):
        raise ArgumentError(
            f"distribute needs a dataset of batches; the elements of this one are {dataset.element_spec}. "
            "Write scope.distribute(dataset.batch(scope.global_batch_size(32)))."
        )
    return strategy.experimental_distribute_dataset(dataset)


def in_order(strategy: tf.distribute.Strategy, data: Nest) -> Nest:
    """Shard `data` over processes by batches, not by files, unless its options say otherwise.

    Given files, TensorFlow would hand each process some of them: every example once, but in another order.
    """
    if not isinstance(data, tf.data.Dataset) or not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return data
    policies = tf.data.experimental.AutoShardPolicy
    if data.options().experimental_distribute.auto_shard_policy != policies.AUTO:
        return data
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policies.DATA
    return data.with_options(options)


def _describe(strategy: tf.distribute.Strategy) -> str:
    count = strategy.num_replicas_in_sync
    return f"{count} replica{'' if count == 1 else 's'} ({type(strategy).__name__.lstrip('_')})"
