"""The place of an iterator over batches, to be kept: those of tf.data and of Grain tell it."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from types import ModuleType

from keras_tpu_ext._runtime.common.types import IteratorState, Nest


class CannotSaveError(Exception):
    """An iterator does not tell its place; the text says why."""


class SavedIterators:
    """Iterators over the same data, one after the other, each of which another process can go on with.

    The iterators of a `tf.data.Dataset` share what a shuffle draws its orders from. The state of one says what the
    next order is only while its own shuffle is not at its end. So beside each there is a second one, which nobody
    reads: its state always says it.

    Args:
        make: Returns an iterator.
    """

    def __init__(self, make: Callable[[], Iterator[Nest]]) -> None:
        self._make = make
        self._iterator: Iterator[Nest] = iter(())
        self._unread: Iterator[Nest] | None = None

    def begin(self, state: IteratorState = None) -> Iterator[Nest]:
        """Return the next iterator; one at the place of a state that `save` has returned, if there is one."""
        self._iterator, self._unread = self._make(), None
        if state is not None:
            restore_iterator(self._iterator, state["now"])
            self._restore_unread(state["unread"])
        elif _tensorflow_of(self._iterator) is not None:
            with contextlib.suppress(CannotSaveError):
                self._restore_unread(save_iterator(self._iterator))
        return self._iterator

    def save(self) -> IteratorState:
        """Return the place of the last iterator.

        Raises:
            CannotSaveError: If it does not tell it.
        """
        return {
            "now": save_iterator(self._iterator),
            "unread": None if self._unread is None else save_iterator(self._unread),
        }

    def make(self, number: int) -> None:
        """Make iterators that nobody reads."""
        for _ in range(number):
            self._make()

    def _restore_unread(self, state: IteratorState) -> None:
        """Make the second iterator, and take back that it has drawn an order."""
        if state is not None:
            self._unread = self._make()
            restore_iterator(self._unread, state)


def save_iterator(iterator: Iterator[Nest]) -> IteratorState:
    """Return the place of an iterator: of `restore_iterator` it gives the same elements again.

    Raises:
        CannotSaveError: If the iterator does not tell it.
    """
    if hasattr(iterator, "get_state"):  # Grain's, which returns bytes or a dict
        return iterator.get_state()
    tensorflow = _tensorflow_of(iterator)
    if tensorflow is None:
        raise CannotSaveError(f"a {type(iterator).__name__} does not tell its place")
    with tempfile.TemporaryDirectory() as folder:
        try:
            tensorflow.train.Checkpoint(iterator=iterator).write(os.path.join(folder, "iterator"))
        except tensorflow.errors.OpError as error:
            raise CannotSaveError(str(error.message).strip().splitlines()[0]) from error
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


def _tensorflow_of(iterator: Iterator[Nest]) -> ModuleType | None:
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow if tensorflow is not None and isinstance(iterator, tensorflow.data.Iterator) else None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
