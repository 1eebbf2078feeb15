"""Where the batches of a pass over the data come from, and what tells the place in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from keras_tpu_ext._runtime.common.iterator_state import CannotSaveError, SavedIterators
from keras_tpu_ext._runtime.common.types import IteratorState, Nest, RandomState
from keras_tpu_ext._runtime.training.indexed_batches import IndexedBatches


class Source(Protocol):
    """Gives the batches of passes over the data."""

    @property
    def begins_anywhere(self) -> bool:
        """Whether a pass can begin at any batch, whatever was read."""

    @property
    def depends_on_earlier(self) -> bool:
        """Whether what a pass gives depends on the passes before it; known when one has begun."""

    def open(self, read: int = 0, iterator: IteratorState = None) -> tuple[Iterator[Nest], int]:
        """Begin a pass.

        Args:
            read: The number of batches that are not to be read again.
            iterator: The state of the iterator after those, or `None`.

        Returns:
            An iterator, and which batch it gives first: number `read`, or 0 if all have to be read again.
        """

    def save(self) -> tuple[IteratorState, bool]:
        """Return the state of the iterator of the pass, and whether what comes after the pass is known from it.

        Raises:
            CannotSaveError: If it does not tell.
        """

    def random_before(self, batch: int) -> RandomState:
        """Return the random states before a batch was read in another thread; `None` if nobody knows them."""

    def make_iterators(self, number: int) -> None:
        """Make iterators that nobody reads: a shuffled `tf.data.Dataset` draws another order for each."""


class IterableSource:
    """The batches of an iterable whose iterators may tell their place.

    Args:
        iterable: Returns the iterable for a pass.
        indexed: What the iterable reads, where that can begin anywhere.
        why_no_state: Why its iterators tell no place, although they could be asked: for a `tf.data.Dataset` that
            reads an iterable in Python. Each pass over it is read again from its begin.
    """

    def __init__(
        self,
        iterable: Callable[[], Iterable[Nest]],
        indexed: IndexedBatches | None = None,
        *,
        why_no_state: str = "",
    ) -> None:
        self._indexed = indexed
        self._why_no_state = why_no_state
        self._iterators = SavedIterators(iterable)

    @property
    def begins_anywhere(self) -> bool:
        """Whether a pass can begin at any batch."""
        return self._indexed is not None

    @property
    def depends_on_earlier(self) -> bool:
        """Whether what a pass gives depends on the passes before it."""
        return self._indexed is None and not self._why_no_state and self._iterators.depends_on_earlier

    def open(self, read: int = 0, iterator: IteratorState = None) -> tuple[Iterator[Nest], int]:
        """Begin a pass."""
        if self._indexed is not None:
            self._indexed.read_pass(read, iterator)
            return self._iterators.begin(), read
        return self._iterators.begin(iterator), 0 if iterator is None else read

    def save(self) -> tuple[IteratorState, bool]:
        """Return the state of the iterator of the pass, or the order of the batches."""
        if self._indexed is not None:
            return self._indexed.order, True
        if self._why_no_state:
            raise CannotSaveError(self._why_no_state)
        return self._iterators.save()

    def random_before(self, batch: int) -> RandomState:
        """Return the random states before a batch was read."""
        return None if self._indexed is None else self._indexed.random_before(batch)

    def make_iterators(self, number: int) -> None:
        """Make iterators that nobody reads, of what is no list of batches."""
        if self._indexed is None:
            self._iterators.make(number)
