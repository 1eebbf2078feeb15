"""Gradients in slices, `tf.IndexedSlices`, over replicas: as many slices as on one device.

Keras 3 squares a slice at a time. So a row of a table that one device has in one slice has to come in one slice, with
the sum of what replicas have of it, and not in one from each replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.tensorflow.replicas import sum_over_replicas

_READS = ("ReadVariableOp", "VarHandleOp")


def sum_gradients(gradients: Sequence[Any]) -> list[Any]:
    """Return gradients summed over replicas, `None` where there is none.

    Slices of rows that no example has asked for, those of positions say, are summed slice by slice. The others are
    of examples, which one replica each has: all of them are kept.
    """
    by_slice = [isinstance(g, tf.IndexedSlices) and is_of_no_example(g.indices) for g in gradients]
    summed = sum_over_replicas([g.values if alike else g for g, alike in zip(gradients, by_slice, strict=True)])
    return [
        tf.IndexedSlices(total, g.indices, g.dense_shape) if alike else total
        for g, total, alike in zip(gradients, summed, by_slice, strict=True)
    ]


def part_of_replica(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Return the part of slices, which all replicas have alike, that this one adds to the sum."""
    context = tf.distribute.get_replica_context()
    count, number = tf.shape(slices.indices)[0], context.replica_id_in_sync_group
    begin, end = (count * one // context.num_replicas_in_sync for one in (number, number + 1))
    return tf.IndexedSlices(slices.values[begin:end], slices.indices[begin:end], slices.dense_shape)


def is_of_no_example(tensor: tf.Tensor) -> bool:
    """Return whether a tensor of a graph is made of constants and variables only: then all replicas have the same."""
    if tf.executing_eagerly():
        return False
    todo, seen = [tensor], set()
    while todo:
        one = todo.pop()
        if not tf.is_symbolic_tensor(one) or one.dtype == tf.resource or one.ref() in seen:
            continue
        seen.add(one.ref())
        operation = one.op
        captured = _captured(one)
        if captured is not None:
            todo.append(captured)
        elif operation.type.startswith("Placeholder") or (
            operation.op_def.is_stateful and operation.type not in _READS
        ):
            return False
        todo.extend(operation.inputs)
    return True


def _captured(tensor: tf.Tensor) -> Any:
    """Return what stands outside the function for a tensor in it, or `None`."""
    return next((outside for outside, inside in getattr(tensor.graph, "captures", ()) if inside is tensor), None)
