"""The place of an iterator over batches, to be kept: those of tf.data and of Grain tell it."""

from __future__ import annotations

import itertools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from keras_tpu_ext._runtime.common.types import Dataset, IteratorState, Nest

_SHUFFLE = re.compile(rb"([\w:\[\]]+)@@(?:[\w@]+@@)?epoch_num_random_samples@@")
_CURE = (
    "Random numbers can come of tf.random.stateless_uniform; if a function in Python always gives the same for the "
    "same rows, set the experimental_external_state_policy of tf.data.Options to "
    "tf.data.experimental.ExternalStatePolicy.IGNORE"
)
_OF_THE_DISK = "ResourceExhaustedError", "PermissionDeniedError", "NotFoundError", "UnavailableError"
_IGNORE_EXTERNAL_STATE = 1  # its graph is asked for, and not run


class CannotSaveError(Exception):
    """An iterator does not tell its place; the text says why."""


class SavedIterators:
    """Iterators over the same data, one after the other, each of which another process can go on with.

    The iterators of a `tf.data.Dataset` share what each of its shuffles draws orders from. The state of an iterator
    says it for the shuffles that have begun and are not at their end. A state that lacks one is good for what is
    left of this iterator, but neither for a repetition nor for the next iterator: it is not whole.

    Args:
        iterable: Returns what is iterated over.
    """

    def __init__(self, iterable: Callable[[], Iterable[Nest]]) -> None:
        self._iterable = iterable
        self._iterator: Iterator[Nest] = iter(())
        self._number_of_shuffles: int | None = None

    @property
    def depends_on_earlier(self) -> bool:
        """Whether what an iterator gives depends on those before it."""
        return _tensorflow_of(self._iterator) is not None

    def begin(self, state: IteratorState = None) -> Iterator[Nest]:
        """Return the next iterator; one at the place of a state that `save` has returned, if there is one."""
        iterable = self._iterable()
        self._iterator = iter(iterable)
        tensorflow = _tensorflow_of(self._iterator)
        if tensorflow is not None and self._number_of_shuffles is None:
            self._number_of_shuffles = _count_shuffles(tensorflow, iterable)
        if state is not None:
            restore_iterator(self._iterator, state)
        return self._iterator

    def save(self) -> tuple[IteratorState, bool]:
        """Return the place of the last iterator, and whether that is whole.

        Raises:
            CannotSaveError: If it does not tell it.
            OSError: If it cannot tell it now.
        """
        state = save_iterator(self._iterator)
        return state, not self.depends_on_earlier or len(_shuffles_in(state)) == self._number_of_shuffles

    def make(self, number: int) -> None:
        """Make iterators that nobody reads."""
        for _ in range(number):
            iter(self._iterable())


def save_iterator(iterator: Iterator[Nest]) -> IteratorState:
    """Return the place of an iterator: of `restore_iterator` it gives the same elements again.

    Raises:
        CannotSaveError: If the iterator does not tell it.
        OSError: If there is no place for the files that TensorFlow writes it into.
    """
    if hasattr(iterator, "get_state"):  # Grain's, which returns bytes or a dict
        return iterator.get_state()
    tensorflow = _tensorflow_of(iterator)
    if tensorflow is None:
        raise CannotSaveError(f"a {type(iterator).__name__} does not tell its place")
    with tempfile.TemporaryDirectory() as folder:
        try:
            tensorflow.train.Checkpoint(iterator=iterator).write(os.path.join(folder, "iterator"))
        except tuple(getattr(tensorflow.errors, name) for name in _OF_THE_DISK) as error:
            raise OSError(error.message) from error
        except tensorflow.errors.OpError as error:
            reason = re.sub(r"^\{\{.*?\}\} | \[Op:.*", "", str(error.message).strip().splitlines()[0])
            raise CannotSaveError(f"{reason.rstrip('.')}. {_CURE}") from error
        return {name: _read(os.path.join(folder, name)) for name in sorted(os.listdir(folder))}


def restore_iterator(iterator: Iterator[Nest], state: IteratorState) -> None:
    """Move an iterator to a place that `save_iterator` has returned, of an iterator over the same data."""
    tensorflow = _tensorflow_of(iterator)
    if tensorflow is None:
        iterator.set_state(state)  # type: ignore[attr-defined]
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, content in state.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)
        tensorflow.train.Checkpoint(iterator=iterator).read(os.path.join(folder, "iterator")).assert_consumed()


def _shuffles_in(state: IteratorState) -> set[bytes]:
    """Return the shuffles of which a state says what they draw from, by the names under which TensorFlow saves it."""
    return set(itertools.chain.from_iterable(_SHUFFLE.findall(content) for content in state.values()))


def _count_shuffles(tensorflow: ModuleType, dataset: Dataset) -> int:
    """Return how many shuffles a `tf.data.Dataset` has; -1 if there is one in a function, made anew in each call."""
    graph = tensorflow.compat.v1.GraphDef.FromString(
        tensorflow.raw_ops.DatasetToGraphV2(
            input_dataset=dataset._variant_tensor, external_state_policy=_IGNORE_EXTERNAL_STATE
        ).numpy()
    )
    inside = itertools.chain.from_iterable(function.node_def for function in graph.library.function)
    return -1 if _count(inside) else _count(graph.node)


def _count(nodes: Iterable[Any]) -> int:
    return sum(bool(re.match(r"Shuffle\w*Dataset", node.op)) for node in nodes)


def _tensorflow_of(iterator: Iterator[Nest]) -> ModuleType | None:
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow if tensorflow is not None and isinstance(iterator, tensorflow.data.Iterator) else None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
