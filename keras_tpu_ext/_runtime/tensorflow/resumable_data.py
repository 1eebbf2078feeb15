"""Batches for replicas from whose middle another process can continue."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.types import Nest, Tensor
from keras_tpu_ext._runtime.tensorflow.cluster import num_workers
from keras_tpu_ext._runtime.tensorflow.replicas import is_none
from keras_tpu_ext._runtime.training.batch_source import Source
from keras_tpu_ext._runtime.training.resumable_data import ResumablePasses
from keras_tpu_ext.errors import ArgumentError, NotForThisKerasError

global_seed: Any = private("tensorflow.python.eager.context:global_seed")


@contextlib.contextmanager
def keeping_seed(data: ResumablePasses, seed: int | None) -> Iterator[None]:
    """Within the block, shuffles without their own seed have one that is kept.

    Unless there is a global seed, TensorFlow draws the seed of such a shuffle, and nobody can read it.
    """
    if num_workers() > 1:
        raise NotForThisKerasError(
            "AutoResume works with several processes on JAX only, and here several train together on TensorFlow. "
            "keras.callbacks.BackupAndRestore(folder) begins the interrupted epoch anew."
        )
    with contextlib.ExitStack() as stack:
        if global_seed() is None:
            data.seed = random.randrange(2**31) if seed is None else seed
            tf.random.set_seed(data.seed)
            stack.callback(tf.random.set_seed, None)
        yield


class DistributedPasses:
    """Stands in for a distributed dataset: each of its iterations is a pass, read in Python.

    Args:
        strategy: The strategy.
        data: The object that reads the batches.
        source: Gives the batches of `dataset`.
        dataset: The dataset to distribute.
        skips_first: Whether Keras creates an iterator before the first epoch that it does not read from.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        data: ResumablePasses,
        source: Source,
        dataset: tf.data.Dataset,
        *,
        skips_first: bool = False,
    ) -> None:
        if not isinstance(dataset, tf.data.Dataset):
            raise ArgumentError(
                f"AutoResume reads the dataset itself, and fit got a {type(dataset).__name__}. Write "
                "model.fit(dataset): fit gives each replica its part."
            )
        self._strategy = strategy
        self._data = data
        self._source = source
        self._dataset = dataset
        self._skips_next = skips_first

    def __iter__(self) -> Iterator[Nest]:
        """Begin a pass; a shuffled dataset draws its order now."""
        is_unread, self._skips_next = self._data.is_between_epochs or self._skips_next, False
        if is_unread:
            # Keras creates this iterator and does not read from it: nothing else may read for it either.
            self._data.leave_unread(self._source)
            return iter(())
        batches = self._data.begin_pass(self._source, at_once=True)
        dataset = dataset_of(lambda: batches, self._dataset.element_spec).with_options(self._dataset.options())
        return iter(self._strategy.experimental_distribute_dataset(dataset.prefetch(tf.data.AUTOTUNE)))


def dataset_of(read: Callable[[], Iterable[Nest]], spec: Nest) -> tf.data.Dataset:
    """Return a dataset of the batches that `read` yields in a pass, of these specs, some of which may be `None`."""
    leaves = tf.nest.flatten(spec)
    there = [i for i, leaf in enumerate(leaves) if not is_none(leaf)]

    def read_leaves() -> Iterator[tuple[Tensor, ...]]:
        for batch in read():
            flat = tf.nest.flatten(batch)
            yield tuple(flat[i] for i in there)

    def packed(*tensors: Tensor) -> Nest:
        found = dict(zip(there, tensors, strict=True))
        return tf.nest.pack_sequence_as(spec, [found.get(i) for i in range(len(leaves))])

    signature = tuple(leaves[i] for i in there)
    return tf.data.Dataset.from_generator(read_leaves, output_signature=signature).map(packed)
