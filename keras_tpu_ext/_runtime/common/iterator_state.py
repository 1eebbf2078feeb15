"""The place of an iterator over batches, to be kept: those of tf.data and of Grain tell it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from keras_tpu_ext._runtime.common.types import IteratorState, Nest


class CannotSaveError(Exception):
    """An iterator does not tell its place; the text says why."""


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


def _tensorflow_of(iterator: Iterator[Nest]) -> Any:
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow if tensorflow is not None and isinstance(iterator, tensorflow.data.Iterator) else None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
