"""Save and restore the position of an iterator over batches, for iterators of tf.data and Grain."""

from __future__ import annotations

import itertools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from keras_tpu_ext._runtime.common.types import Dataset, IteratorState, Nest
from keras_tpu_ext.errors import CheckpointError

_SHUFFLE = re.compile(rb"([\w:\[\]]+)@@(?:[\w@]+@@)?epoch_num_random_samples@@")
_CURE = (
    "Random numbers can come of tf.random.stateless_uniform; if a function in Python always gives the same for the "
    "same rows, set the experimental_external_state_policy of tf.data.Options to "
    "tf.data.experimental.ExternalStatePolicy.IGNORE"
)
_OF_THE_DISK = "ResourceExhaustedError", "PermissionDeniedError", "NotFoundError", "UnavailableError"
_IGNORE_EXTERNAL_STATE = 1  # its graph is requested, but not run
_FILES = ("iterator.index", "iterator.data-00000-of-00001")  # that TensorFlow writes


class CannotSaveError(Exception):
    """An iterator cannot save its position; the message says why."""


class SavedIterators:
    """Successive iterators over the same data, from each of which another process can continue.

    The iterators of a `tf.data.Dataset` share the random generators from which its shuffles draw orders. The state of
    an iterator includes the generators of those shuffles that have begun and not ended. A state that lacks one is
    sufficient for the rest of this iterator, but neither for a repetition nor for the next iterator: it is not whole.
    """

    def __init__(self, iterable: Callable[[], Iterable[Nest]]) -> None:
        self._iterable = iterable
        self._iterator: Iterator[Nest] = iter(())
        self._number_of_shuffles: int | None = None

    @property
    def depends_on_earlier(self) -> bool:
        """Whether the elements of an iterator depend on the iterators before it."""
        return _tensorflow_of(self._iterator) is not None

    def begin(self, state: IteratorState = None) -> Iterator[Nest]:
        """Return the next iterator; if a state that `save` returned is given, at its position."""
        iterable = self._iterable()
        self._iterator = iter(iterable)
        tensorflow = _tensorflow_of(self._iterator)
        if tensorflow is not None and self._number_of_shuffles is None:
            self._number_of_shuffles = _count_shuffles(tensorflow, iterable)
        if state is not None:
            restore_iterator(self._iterator, state)
        return self._iterator

    def save(self) -> tuple[IteratorState, bool]:
        """Return the state of the last iterator, and whether it is whole.

        Raises:
            CannotSaveError: If the iterator cannot save its state.
            OSError: If it cannot save its state now.
        """
        state = save_iterator(self._iterator)
        return state, not self.depends_on_earlier or len(_shuffles_in(state)) == self._number_of_shuffles

    def make(self, number: int) -> None:
        """Create iterators that are not read."""
        for _ in range(number):
            iter(self._iterable())


def save_iterator(iterator: Iterator[Nest]) -> IteratorState:
    """Return the state of an iterator, with which `restore_iterator` lets it give the same elements again.

    Raises:
        CannotSaveError: If the iterator cannot save its state.
        OSError: If TensorFlow cannot write its files for it.
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
        return [Path(folder, name).read_bytes() for name in _FILES]


def restore_iterator(iterator: Iterator[Nest], state: IteratorState) -> None:
    """Restore a state that `save_iterator` returned for an iterator over the same data.

    Raises:
        CheckpointError: If it is no state of such an iterator.
    """
    tensorflow = _tensorflow_of(iterator)
    try:
        if tensorflow is None:
            iterator.set_state(state)  # type: ignore[attr-defined]
            return
        with tempfile.TemporaryDirectory() as folder:
            for name, content in zip(_FILES, state, strict=True):
                Path(folder, name).write_bytes(content)
            tensorflow.train.Checkpoint(iterator=iterator).read(os.path.join(folder, "iterator")).assert_consumed()
    except OSError:
        raise
    except Exception as error:  # of TensorFlow, Grain or a user's iterator, each in its own way
        raise CheckpointError(
            f"the position in the data that was saved is none of this {type(iterator).__name__} "
            f"({type(error).__name__}: {error})"
        ) from error


def _shuffles_in(state: IteratorState) -> set[bytes]:
    """Return the shuffles whose random generators a state includes, by the names that TensorFlow saves them under."""
    return set(itertools.chain.from_iterable(_SHUFFLE.findall(content) for content in state))


def _count_shuffles(tensorflow: ModuleType, dataset: Dataset) -> int:
    """Return how many shuffles a `tf.data.Dataset` has; -1 if one is in a function, created again by each call."""
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
