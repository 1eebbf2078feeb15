"""Padded batches of a `Sequence` on Keras 2, whose own adapter turns them into plain tuples."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.padding import GivesPaddedBatches, PaddedBatch
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.tensorflow.resumable_data import dataset_of
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
    specs = [None if one is None else _spec(one, other) for one, other in zip(leaves, second, strict=True)]

    def one_pass() -> Iterator[Nest]:
        order = list(range(len(batches)))
        if shuffle:
            random.shuffle(order)
        for index in order:
            batch = batches[index]
            for leaf, spec in zip(tf.nest.flatten(batch), specs, strict=True):
                if spec is not None and not spec.shape.is_compatible_with(leaf.shape):
                    raise ArgumentError(_OTHER_SHAPE.format(index=index, got=leaf.shape, needed=tuple(spec.shape)))
            yield batch
        if not isinstance(batches, IndexedBatches):
            batches.on_epoch_end()

    dataset = dataset_of(one_pass, tf.nest.pack_sequence_as(first, specs))
    if isinstance(batches, IndexedBatches):  # whose passes may begin in the middle
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))


def _spec(one: Any, other: Any) -> tf.TensorSpec:
    return tf.TensorSpec(tf.TensorShape(one.shape).most_specific_compatible_shape(other.shape), one.dtype)


def _with_tuples(batch: Nest) -> Nest:
    """Return a structure with tuples in place of its lists, which tf.data would turn into tensors."""
    if isinstance(batch, Mapping):
        return {name: _with_tuples(part) for name, part in batch.items()}
    if isinstance(batch, PaddedBatch):
        return type(batch)(*map(_with_tuples, batch))
    return tuple(map(_with_tuples, batch)) if isinstance(batch, (list, tuple)) else batch
