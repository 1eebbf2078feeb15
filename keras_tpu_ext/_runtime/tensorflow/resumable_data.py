"""Batches for replicas that another process can go on with in their middle."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Nest, Tensor
from keras_tpu_ext._runtime.tensorflow.replicas import is_none
from keras_tpu_ext._runtime.training.resumable_data import ResumablePasses, Source


class DistributedPasses:
    """In the place of a distributed dataset: each of its iterations is a pass, read in Python.

    Args:
        strategy: The strategy.
        data: What reads the batches.
        source: Gives the batches of `dataset`.
        dataset: The dataset that is to be distributed.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, data: ResumablePasses, source: Source, dataset: tf.data.Dataset
    ) -> None:
        self._strategy = strategy
        self._data = data
        self._source = source
        self._dataset = dataset

    def __iter__(self) -> Iterator[Nest]:
        """Begin a pass, whose order a shuffled dataset draws now."""
        if self._data.is_between_epochs:
            # Keras makes this iterator and does not read from it: nobody else may read for it either.
            self._data.leave_unread(self._source)
            return iter(())
        batches = self._data.begin_pass(self._source, at_once=True)
        return iter(self._strategy.experimental_distribute_dataset(_dataset_of(batches, self._dataset)))


def _dataset_of(batches: Iterator[Nest], like: tf.data.Dataset) -> tf.data.Dataset:
    """Return a dataset of batches, with the types and the number of those of another one."""
    spec = like.element_spec
    leaves = tf.nest.flatten(spec)
    places = [place for place, leaf in enumerate(leaves) if not is_none(leaf)]

    def read() -> Iterator[tuple[Tensor, ...]]:
        for batch in batches:
            flat = tf.nest.flatten(batch)
            yield tuple(flat[place] for place in places)

    def packed(*there: Tensor) -> Nest:
        flat: list[Tensor] = [None] * len(leaves)
        for place, leaf in zip(places, there, strict=True):
            flat[place] = leaf
        return tf.nest.pack_sequence_as(spec, flat)

    signature = tuple(leaves[place] for place in places)
    dataset = tf.data.Dataset.from_generator(read, output_signature=signature).map(packed)
    return dataset.with_options(like.options()).prefetch(tf.data.AUTOTUNE)
