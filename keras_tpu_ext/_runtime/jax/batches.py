"""From the batches that Keras's data adapters give to what a compiled step is called with.

TPUs want few shapes, and devices want equal parts. So a batch that is short, or that the devices do not divide, is
filled up with copies of its last row, and the step is told how many rows count (`filled`). Where a model has code
that needs to see the examples alone, a batch keeps its size, and one that the devices do not divide is given to each
of them whole. Either way nothing is dropped and nothing counts twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from keras_tpu_ext._runtime.common.padding import MARK, PaddedBatch, without_own_weights
from keras_tpu_ext._runtime.jax.sharding import placed


class Group(NamedTuple):
    """Batches of one shape, on the devices.

    Attributes:
        data: The batch; with `steps`, several of them along a new first dimension.
        examples: How many rows of each count: int32, with the shape of `steps`'s batches; `None` where all do.
        steps: How many of the batches are there, int32; `None` for a single one without a dimension of its own.
    """

    data: Any
    examples: Any
    steps: Any


class HostBatch(NamedTuple):
    """A batch on the host.

    Attributes:
        data: What the model takes, as NumPy arrays.
        rows: Number of rows, all of them examples.
        space: Number of rows that it was padded to before.
    """

    data: Any
    rows: int
    space: int


class Batches:
    """Makes groups of the batches of one pass over the data.

    Args:
        distribution: Keras's `DataParallel`, or `None`.
        replicas: Over how many devices a batch is split.
        fills_up: Whether to fill batches up.
        most_steps: How many batches an execution may have at most, where that is known: the number in an epoch.
    """

    def __init__(self, distribution: Any, replicas: int, *, fills_up: bool, most_steps: int | None = None) -> None:
        self._distribution = distribution
        self._replicas = replicas
        self._fills_up = fills_up
        self._most_steps = most_steps
        self._space = 0

    def executions(self, source: Any, steps: Callable[[], tuple[int, int]]) -> Iterator[list[Group]]:
        """Yield the groups of one execution after the other.

        Args:
            source: Iterable of batches, as Keras's adapters give them.
            steps: Returns how many batches the next execution is to have, and for how many there is to be room: a
                shorter last execution, in the room of the others, is no other program.
        """
        iterator = iter(source)
        while True:
            wanted, room = steps()
            batches = [host_batch(batch) for batch in itertools.islice(iterator, wanted)]
            if not batches:
                return
            yield self.groups(batches, room if self._most_steps is None else min(room, self._most_steps))

    def groups(self, batches: Sequence[HostBatch], room: int = 1) -> list[Group]:
        """Return groups that hold `batches` in their order, each with room for `room` of them."""
        if self._fills_up:
            largest = max(max(batch.rows, batch.space) for batch in batches)
            self._space = max(self._space, -(-largest // self._replicas) * self._replicas)
        # The first of what makes a shape is the number of rows.
        alike = itertools.groupby(batches, key=lambda batch: _shapes(batch.data)[1 if self._fills_up else 0 :])
        return [self._group(list(group), room) for _, group in alike]

    def _group(self, batches: list[HostBatch], room: int) -> Group:
        rows = self._space if self._fills_up else batches[0].rows
        examples = np.asarray([batch.rows for batch in batches], np.int32) if self._fills_up else None
        splits = rows % self._replicas == 0
        if room == len(batches) == 1:
            one = jax.tree.map(lambda leaf: _with_rows(leaf, rows), batches[0].data)
            on_devices = placed(one, self._distribution, axis=0 if splits else None)
            return Group(on_devices, None if examples is None else examples[0], None)
        room = max(room, len(batches))
        stack = jax.tree.map(lambda *leaves: _stacked(leaves, rows, room), *[batch.data for batch in batches])
        on_devices = placed(stack, self._distribution, axis=1 if splits else None)
        if examples is not None:
            examples = np.pad(examples, (0, room - len(batches)))
        return Group(on_devices, examples, np.int32(len(batches)))


def host_batch(batch: Any) -> HostBatch:
    """Return a batch as NumPy arrays, without the rows that `pad_batches` has added."""
    space = 0
    if isinstance(batch, PaddedBatch):
        weight = np.asarray(next(leaf for leaf in jax.tree.leaves(batch.sample_weight)))
        real = np.any(weight.view(np.int32) != np.float32(MARK).view(np.int32), axis=tuple(range(1, weight.ndim)))
        space, examples = len(real), int(real.sum())
        batch = tuple(without_own_weights(batch))
        at_the_end = real[:examples].all()
        batch = jax.tree.map(
            lambda leaf: np.asarray(leaf)[:examples] if at_the_end else np.asarray(leaf)[real], batch
        )
    else:
        batch = jax.tree.map(np.asarray, batch)
    return HostBatch(batch, len(jax.tree.leaves(batch)[0]), space)


def _shapes(data: Any) -> tuple[Any, ...]:
    """Return what makes two batches a different program: first the number of rows, then all else."""
    leaves, structure = jax.tree.flatten(data)
    return (len(leaves[0]), structure, *((leaf.shape[1:], leaf.dtype) for leaf in leaves))


def _with_rows(leaf: Any, rows: int) -> Any:
    return leaf if len(leaf) == rows else _stacked([leaf], rows, 1)[0]


def _stacked(leaves: Sequence[Any], rows: int, room: int) -> Any:
    """Return arrays along a new first dimension of size `room`, each filled up to `rows` rows."""
    stack = np.empty((room, rows, *leaves[0].shape[1:]), leaves[0].dtype)
    for place, leaf in zip(stack, leaves, strict=False):
        place[: len(leaf)] = leaf
        place[len(leaf) :] = leaf[-1:]
    stack[len(leaves) :] = 0
    return stack
