"""A step that is written for one device, on replicas: each runs it on the whole batch, as one device would.

The gradients that its optimizers sum are all the same, so their mean is taken, which keeps the replicas in sync even
if they draw different random numbers. Keras's losses are not divided by the number of replicas. Each replica keeps
its share of what metrics count, because reading them returns the sum.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Model, Nest, Variable
from keras_tpu_ext._runtime.tensorflow.batch import (
    BATCH,
    batch_context,
    gather_examples,
    place_in_batch,
    whole_batch_view,
)
from keras_tpu_ext._runtime.tensorflow.replicas import holds_whole_batch, native
from keras_tpu_ext._runtime.training.exact_models import is_inside


def predict_on_whole_batch(step: Callable[[Any], Any], data: Nest) -> Any:
    """Return what `step` predicts for this replica's part of the batch, given the whole batch."""
    with batch_context(data, "own") as batch:
        rows = tf.cast(batch.examples, tf.int32)
        begin, _ = place_in_batch(rows)
        whole = gather_examples(data)
    with whole_batch_view():
        outputs = step(whole)
    return tf.nest.map_structure(lambda values: values[begin : begin + rows], outputs)


def on_whole_batch(model: Model, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `step`, which takes a whole batch, as a step that takes a replica's part of it."""
    replicas = model.distribute_strategy.num_replicas_in_sync

    def whole_step(data: Nest) -> Any:
        with batch_context(data, "own"):
            data = gather_examples(data)
            # Not `whole_state`: Keras 2 creates metrics while it traces the first replica, which has none until then.
            sums = _sums_over_replicas(model)
            for variable in sums:
                variable.assign(variable * tf.cast(replicas, variable.dtype))
            with whole_batch_view():
                logs = step(data)
            for variable in sums:
                variable.assign(variable / tf.cast(replicas, variable.dtype))
        return logs

    return whole_step


def averaging(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an optimizer's method that sums gradients, to take their mean if each replica has the whole batch."""

    @functools.wraps(stock)
    def reduce(optimizer: Any, grads_and_vars: Any) -> Any:
        if holds_whole_batch():
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            grads_and_vars = [(_part_of_sum(gradient, replicas), variable) for gradient, variable in grads_and_vars]
        return stock(optimizer, grads_and_vars)

    return reduce


def undivided(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that divides a loss by the number of replicas, to skip that if `takes_own_mean` is true."""

    @functools.wraps(stock)
    def scale(value: Any) -> Any:
        return value if takes_own_mean() else stock(value)

    return scale


def takes_own_mean() -> bool:
    """Return whether one of Keras's means is to be taken over the rows at hand.

    This is so if each replica has the whole batch, for a layer's loss in the exact step, which weights it itself, and
    in a block where no step runs: there it is the same as on one device.
    """
    is_in_no_step = is_inside() and tf.distribute.in_cross_replica_context()
    is_exact = BATCH.role == "exact" or (BATCH.is_trial and BATCH.role is None)
    return bool(holds_whole_batch() or is_exact or is_in_no_step)


def _part_of_sum(gradient: Any, replicas: int) -> Any:
    """Return what this replica adds to the sum: of slices a part, so that all parts are the slices of one device."""
    if not isinstance(gradient, tf.IndexedSlices):
        return None if gradient is None else gradient / tf.cast(replicas, gradient.dtype)
    count = tf.shape(gradient.indices)[0]
    number = tf.distribute.get_replica_context().replica_id_in_sync_group
    begin, end = (count * one // replicas for one in (number, number + 1))
    return tf.IndexedSlices(gradient.values[begin:end], gradient.indices[begin:end], gradient.dense_shape)


def _sums_over_replicas(model: Model) -> list[Variable]:
    """Return the metrics' variables of which each replica has its own value, and reading returns their sum."""
    on_read = tf.VariableSynchronization.ON_READ
    variables = [native(variable) for metric in model.metrics for variable in metric.variables]
    return [each for each in variables if each.synchronization == on_read and each.dtype.is_floating]
