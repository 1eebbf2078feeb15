"""Padded batches of a `Sequence` on Keras 2, whose own adapter turns them into plain tuples."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.padding import GivesPaddedBatches, PaddedBatch
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.indexed_batches import IndexedBatches
from keras_tpu_ext.errors import ArgumentError

_OTHER_SHAPE = (
    "pad_batches got a Sequence whose batch number {index} has the shape {got}, and its first two say {needed}. On a "
    "TPU every other shape is another compilation. Bring all batches to one length in __getitem__: "
    "keras.utils.pad_sequences(x, maxlen=128)"
)


def replace_padded_batches(call: FitCall) -> None:
    """Replace a `Sequence` of padded batches among the arguments of a call by a dataset."""
    shuffle = call.method == "fit" and bool(call.arguments.get("shuffle", True))
    for name, shuffles in (("x", shuffle), ("validation_data", False)):
        if isinstance(call.arguments.get(name), GivesPaddedBatches):
            call.arguments[name] = _dataset(call.arguments[name], shuffle=shuffles)


def _dataset(batches: Any, *, shuffle: bool) -> tf.data.Dataset:
    """Return a dataset of the batches of a `Sequence`, in a new order in each pass if `shuffle`."""
    # As in Keras 3, the first two batches show the dimensions whose size varies.
    first = _with_tuples(batches[0])
    leaves = tf.nest.flatten(first)
    second = tf.nest.flatten(batches[1]) if len(batches) > 1 else leaves
    positions = [i for i, leaf in enumerate(leaves) if leaf is not None]
    shapes = [tf.TensorShape(leaves[i].shape).most_specific_compatible_shape(second[i].shape) for i in positions]
    signature = tuple(tf.TensorSpec(shape, leaves[i].dtype) for shape, i in zip(shapes, positions, strict=True))

    def one_pass() -> Iterator[tuple[Any, ...]]:
        order = list(range(len(batches)))
        if shuffle:
            random.shuffle(order)
        for index in order:
            of_batch = tf.nest.flatten(batches[index])
            present = tuple(of_batch[i] for i in positions)
            for leaf, spec in zip(present, signature, strict=True):
                if not spec.shape.is_compatible_with(leaf.shape):
                    raise ArgumentError(_OTHER_SHAPE.format(index=index, got=leaf.shape, needed=tuple(spec.shape)))
            yield present
        if not isinstance(batches, IndexedBatches):
            batches.on_epoch_end()

    def packed(*present: tf.Tensor) -> Nest:
        filled: list[Any] = [None] * len(leaves)
        for position, leaf in zip(positions, present, strict=True):
            filled[position] = leaf
        return tf.nest.pack_sequence_as(first, filled)

    dataset = tf.data.Dataset.from_generator(one_pass, output_signature=signature).map(packed)
    if isinstance(batches, IndexedBatches):  # whose passes may begin in the middle
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))


def _with_tuples(batch: Nest) -> Nest:
    """Return a structure with tuples in place of its lists, which tf.data would turn into tensors."""
    if isinstance(batch, Mapping):
        return {name: _with_tuples(part) for name, part in batch.items()}
    if isinstance(batch, PaddedBatch):
        return type(batch)(*map(_with_tuples, batch))
    return tuple(map(_with_tuples, batch)) if isinstance(batch, (list, tuple)) else batch
