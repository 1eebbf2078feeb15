"""Where the batches of a pass over the data come from, and how the position in them is saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from keras_tpu_ext._runtime.common.iterator_state import CannotSaveError, SavedIterators
from keras_tpu_ext._runtime.common.types import Dataset, IteratorState, Nest, RandomState
from keras_tpu_ext._runtime.training.indexed_batches import IndexedBatches


class Source:
    """The batches of an iterable whose iterators may be able to save their position.

    Args:
        iterable: Returns the iterable for a pass.
        indexed: What the iterable reads, if that can begin anywhere.
        converts: What the iterable reads, if its batches are made of those of a `tf.data.Dataset`.
        why_no_state: Why its iterators cannot save their position although they have a method for it, as for a
            `tf.data.Dataset` that reads a Python iterable. Each pass over it is read again from its start.
    """

    def __init__(
        self,
        iterable: Callable[[], Iterable[Nest]],
        indexed: IndexedBatches | None = None,
        *,
        converts: RememberedDataset | None = None,
        why_no_state: str = "",
    ) -> None:
        self._iterable = iterable
        self._indexed = indexed
        self._converts = converts
        self._why_no_state = why_no_state
        self._iterators = SavedIterators(iterable) if converts is None else converts.iterators
        self.begins_anywhere = indexed is not None  # whether a pass can begin at any batch, whatever was read

    @property
    def depends_on_earlier(self) -> bool:
        """Whether the batches of a pass depend on the passes before it; known once a pass has begun."""
        return self._indexed is None and not self._why_no_state and self._iterators.depends_on_earlier

    def open(self, read: int = 0, iterator: IteratorState = None) -> tuple[Iterator[Nest], int]:
        """Begin a pass.

        Args:
            read: The number of batches to skip, if possible without reading them again.
            iterator: The state of the iterator after those, or `None`.

        Returns:
            An iterator, and the index of its first batch: `read`, or 0 if all have to be read again.
        """
        if self._indexed is not None:
            self._indexed.read_pass(read, iterator)
            return self._iterators.begin(), read
        first = 0 if iterator is None else read
        if self._converts is not None:
            self._converts.state = iterator
            return iter(self._iterable()), first
        return self._iterators.begin(iterator), first

    def save(self) -> tuple[IteratorState, bool]:
        """Return the state of the pass's iterator, and whether it also determines what comes after the pass.

        Raises:
            CannotSaveError: If the iterator's state cannot be saved.
        """
        if self._indexed is not None:
            return self._indexed.order, True
        if self._why_no_state:
            raise CannotSaveError(self._why_no_state)
        return self._iterators.save()

    def random_before(self, batch: int) -> RandomState:
        """Return the random states before a batch was read in another thread; `None` if they are unknown."""
        return None if self._indexed is None else self._indexed.random_before(batch)

    def make_iterators(self, number: int) -> None:
        """Create iterators that are not read: a shuffled `tf.data.Dataset` draws another order for each."""
        if self._indexed is None:
            self._iterators.make(number)


class RememberedDataset:
    """A `tf.data.Dataset` that remembers its iterators, which Keras wraps in others."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.iterators = SavedIterators(lambda: dataset)
        self.state: IteratorState = None  # in which the next iterator begins; `None` for the start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __iter__(self) -> Iterator[Nest]:
        """Return an iterator."""
        state, self.state = self.state, None
        return self.iterators.begin(state)
