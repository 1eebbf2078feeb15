"""Replicas without any example: no layer sees an empty batch, and nothing that they compute counts.

The last batch often leaves some replicas with no rows. Kernels and layers are not made for that: TensorFlow's oneDNN
max pooling returns a wrong shape, and a mean over no rows is NaN. Such a replica runs on one row instead: one of the
batch if a table may know only its words and numbers, else one of ones; zeros would be masked tokens, and poles of
functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Nest, SameNest
from keras_tpu_ext._runtime.tensorflow.replicas import ONCE_A_BATCH, UNIQUE

_ATTACHED = ("_keras_mask", "_keras_logits")  # tensors that Keras attaches to an output: its mask, and its logits


def one_row_if_empty(data: SameNest, has_any: tf.Tensor | None) -> SameNest:
    """Return `data`, or one row for each of its tensors: from the batch for text and integers, ones for others.

    There certainly are examples if `has_any` is `None`.
    """
    if has_any is None:
        return data

    # Made before the condition: within one, replicas cannot see each other.
    rows = {id(leaf): _row_to_stand_in(leaf) for leaf in tf.nest.flatten(data) if _is_dense(leaf)}

    def row(leaf: tf.Tensor) -> tf.Tensor:
        if id(leaf) in rows:
            return rows[id(leaf)]
        if isinstance(leaf, tf.RaggedTensor):
            splits = [tf.constant([0, 1], leaf.row_splits.dtype)] * leaf.ragged_rank
            return tf.RaggedTensor.from_nested_row_splits(_row_of_ones(leaf.flat_values), splits)
        if isinstance(leaf, tf.SparseTensor):  # with a one at its first position
            first = tf.zeros([1, leaf.shape.rank], tf.int64)
            shape = tf.concat([[1], leaf.dense_shape[1:]], axis=0)
            return tf.SparseTensor(first, _row_of_ones(leaf.values), shape)
        return leaf

    return _either(data, has_any, row)


def _is_dense(leaf: object) -> bool:
    return isinstance(leaf, tf.Tensor) and leaf.shape.rank != 0


def _row_to_stand_in(leaf: tf.Tensor) -> tf.Tensor:
    """Return the first row of any replica for text and integers, and a row of ones of its sizes for others.

    Only `MirroredStrategy` lets replicas see each other without a reduction; on others it is a row of ones.
    """
    may_be_looked_up = leaf.dtype == tf.string or leaf.dtype.is_integer
    knows_sizes = leaf.shape[1:].is_fully_defined()
    sees_others = isinstance(tf.distribute.get_strategy(), tf.distribute.MirroredStrategy)
    if not sees_others or (knows_sizes and not may_be_looked_up):
        return _row_of_ones(leaf)

    @tf.autograph.experimental.do_not_convert
    def first(strategy: tf.distribute.Strategy, leaf: tf.Tensor) -> tf.Tensor:
        parts = strategy.experimental_local_results(leaf)
        # Sizes that only the data know are 0 on a replica that got none.
        sizes = tf.reduce_max(tf.stack([tf.shape(part)[1:] for part in parts]), axis=0)
        if not may_be_looked_up:
            return tf.ones(tf.concat([[1], sizes], axis=0), parts[0].dtype)
        rows = [tf.reshape(part[:1], tf.concat([tf.shape(part[:1])[:1], sizes], axis=0)) for part in parts]
        return tf.concat([*rows, _row_of_ones(rows[0])], axis=0)[:1]

    return tf.distribute.get_replica_context().merge_call(first, args=(leaf,))


def _row_of_ones(leaf: tf.Tensor) -> tf.Tensor:
    sizes = tf.shape(leaf)[1:]
    sizes = sizes if leaf.shape[1:].is_fully_defined() else tf.maximum(sizes, 1)
    shape = tf.concat([[1], sizes], axis=0)
    return tf.fill(shape, "1") if leaf.dtype == tf.string else tf.ones(shape, leaf.dtype)


def no_row_if_empty(data: SameNest, has_any: tf.Tensor | None) -> SameNest:
    """Return `data`, or no row of it; what Keras has attached to its tensors is kept."""
    if has_any is None:
        return data
    return with_attached(data, lambda parts: _either(parts, has_any, _no_row))


def _no_row(leaf: tf.Tensor) -> tf.Tensor:
    if isinstance(leaf, tf.SparseTensor):
        return tf.sparse.slice(leaf, [0] * leaf.shape.rank, tf.concat([[0], leaf.dense_shape[1:]], axis=0))
    return leaf if leaf.shape.rank == 0 else leaf[:0]  # a number that a model returns beside its outputs is kept


def attached_to(data: Nest) -> list[tf.Tensor]:
    """Return the masks and logits that Keras attaches to the tensors of `data`."""
    found = [getattr(leaf, name, None) for leaf in tf.nest.flatten(data) for name in _ATTACHED]
    return [leaf for leaf in found if leaf is not None]


def with_attached(data: SameNest, function: Callable[[Any], Any]) -> SameNest:
    """Return `function(data)`, a structure like `data`, with the masks and logits that Keras attaches to tensors."""
    leaves = tf.nest.flatten(data)
    attached = {name: [getattr(leaf, name, None) for leaf in leaves] for name in _ATTACHED}
    data, attached = function((data, attached))
    for name, values in attached.items():
        for leaf, value in zip(tf.nest.flatten(data), values, strict=True):
            if value is not None:
                setattr(leaf, name, value)
    return data


def finite_if_empty(gradients: Any, has_any: tf.Tensor | None) -> Any:
    """Return `gradients`, or their finite elements: upstream is zero, but zero times infinity is NaN.

    They are not all zero: this replica has its part of the regularisers.
    """
    if has_any is None:
        return gradients
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    values = _either(values, has_any, lambda g: tf.where(tf.math.is_finite(g), g, tf.zeros_like(g)))
    return [
        _with_values(g, value, has_any) if isinstance(g, tf.IndexedSlices) else value
        for g, value in zip(gradients, values, strict=True)
    ]


def _with_values(slices: tf.IndexedSlices, values: tf.Tensor, has_any: tf.Tensor) -> tf.IndexedSlices:
    """Return `slices` with `values`; on a replica without examples, only those rows that are not all zero.

    The row of ones has looked up something, and an optimizer that is lazy, or decays the rows that it gets, changes
    rows even for a gradient of zero. Lookups that are made once per batch are the same as on the other replicas.
    """
    if getattr(slices, ONCE_A_BATCH, False):
        same = tf.IndexedSlices(values, slices.indices, slices.dense_shape)
        setattr(same, ONCE_A_BATCH, True)
        return same

    def changing() -> tuple[tf.Tensor, tf.Tensor]:
        changes = tf.reduce_any(tf.not_equal(values, 0), axis=list(range(1, values.shape.rank)))
        return tf.boolean_mask(values, changes), tf.boolean_mask(slices.indices, changes)

    values, indices = tf.cond(has_any, lambda: (values, tf.identity(slices.indices)), changing)
    changed = tf.IndexedSlices(values, indices, slices.dense_shape)
    setattr(changed, UNIQUE, getattr(slices, UNIQUE, False))
    return changed


def _either(data: SameNest, condition: tf.Tensor, otherwise: Callable[[tf.Tensor], tf.Tensor]) -> SameNest:
    """Return the tensors of `data`, or `otherwise` of each; the condition copies none of them."""
    leaves = tf.nest.flatten(data)
    found = {id(leaf): leaf for leaf in leaves if leaf is not None}  # each once: the mask of two outputs stays one
    if not found:
        return data
    either = tf.cond(condition, lambda: [*found.values()], lambda: [otherwise(leaf) for leaf in found.values()])
    chosen = dict(zip(found, either, strict=True))
    for leaf, each in zip(found.values(), either, strict=True):
        if isinstance(leaf, tf.Tensor) and leaf.shape.rank:
            each.set_shape([None, *leaf.shape[1:]])  # a `TimeDistributed` of Keras needs the number of steps
    return tf.nest.pack_sequence_as(data, [leaf if leaf is None else chosen[id(leaf)] for leaf in leaves])
