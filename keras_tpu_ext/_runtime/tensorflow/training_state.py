"""The state of a training run under `tf.distribute`, and its batches, from whose middle another process can go on."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.types import Model, Nest, Tensor, Variable
from keras_tpu_ext._runtime.common.values import SavedVariable
from keras_tpu_ext._runtime.compat import path_of
from keras_tpu_ext._runtime.tensorflow.cluster import num_workers
from keras_tpu_ext._runtime.tensorflow.replicas import (
    assign_to_replicas,
    is_none,
    is_per_replica,
    native,
    values_of_replicas,
    zeros_of_replicas,
)
from keras_tpu_ext._runtime.training.batch_source import Source
from keras_tpu_ext._runtime.training.resumable_data import ResumablePasses
from keras_tpu_ext._runtime.training.step_state import step_state_of
from keras_tpu_ext._runtime.training.training_state import check_same
from keras_tpu_ext.errors import ArgumentError, CheckpointError, NotForThisKerasError

Named: TypeAlias = "Sequence[tuple[str, Variable]]"


def read_variables(variables: Named) -> list[SavedVariable]:
    """Return the values of variables, each given with its role."""
    return [_read(role, variable) for role, variable in variables]


def assign_variables(variables: Named, saved: Sequence[SavedVariable]) -> None:
    """Assign values that `read_variables` returned to variables."""
    check_same(saved, variables)
    _check_replicas(saved, variables)
    for one, (_, variable) in zip(saved, variables, strict=True):
        value = np.asarray(one.value).astype(native(variable).dtype.as_numpy_dtype)
        of_replicas = value if one.per_replica else value[np.newaxis]
        if one.role == "random" or is_per_replica(variable):
            assign_to_replicas(variable, of_replicas)
        else:
            native(variable).assign(value.sum(axis=0) if one.per_replica else value)


def _check_replicas(saved: Sequence[SavedVariable], variables: Named) -> None:
    for one, (role, variable) in zip(saved, variables, strict=True):
        were, are = len(one.value) if one.per_replica else 1, len(zeros_of_replicas(variable))
        if role == "random" and were != are:
            raise CheckpointError(
                f"its layers drew random numbers on {were} replicas, each its own, and here are {are}. Go on with "
                f"strategy_scope(replicas={were})"
            )


def all_gather_int(model: Model, number: int) -> list[int]:
    """Return the number alone: one process trains."""
    return [number]


def variables_of_step(model: Model) -> list[tuple[str, Variable]]:
    """Return the variables of the loss scale and the accumulated gradients, with their role."""
    state = step_state_of(model)
    return [] if state is None else [("step", variable) for variable in state.own_variables()]


def _read(role: str, variable: Variable) -> SavedVariable:
    if role == "random" or is_per_replica(variable):  # replicas draw from Keras 2's generators independently
        return SavedVariable(role, path_of(variable), values_of_replicas(variable), True)
    value: Variable = native(variable)
    return SavedVariable(role, path_of(variable), np.array(value.numpy()))


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
