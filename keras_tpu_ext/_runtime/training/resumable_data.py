"""The batches of one `fit`, so read that another process can go on in the middle of them.

Keras reads data in passes: one for each epoch, or one over several where `steps_per_epoch` is given. A pass goes on
where it was by the state of its iterator, or by an index, or it is read again up to there. What is drawn at random on
the way is the same again, for the states of Python's and NumPy's generators are kept.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np

from keras_tpu_ext._runtime.common.iterator_state import CannotSaveError, SavedIterators
from keras_tpu_ext._runtime.common.protocols import Place
from keras_tpu_ext._runtime.common.types import IteratorState, Nest, RandomState
from keras_tpu_ext._runtime.compat import tree
from keras_tpu_ext._runtime.training.indexed_batches import IndexedBatches


class Source(Protocol):
    """Gives the batches of passes over the data.

    Attributes:
        begins_anywhere: Whether a pass can begin at any batch, whatever was read.
    """

    begins_anywhere: bool

    def open(self, read: int, iterator: IteratorState) -> tuple[Iterator[Nest], int]:
        """Begin a pass.

        Args:
            read: The number of batches that are not to be read again.
            iterator: The state of the iterator after those, or `None`.

        Returns:
            An iterator, and which batch it gives first: number `read`, or 0 if all have to be read again.
        """

    def save(self) -> IteratorState:
        """Return the state of the iterator of the pass; `None` if a pass can begin anywhere without.

        Raises:
            CannotSaveError: If it does not tell.
        """

    def make_iterators(self, number: int) -> None:
        """Make iterators that nobody reads: a shuffled `tf.data.Dataset` draws another order for each."""


class IterableSource:
    """The batches of an iterable whose iterators may tell their place.

    Args:
        iterable: Returns the iterable for a pass.
        indexed: What the iterable reads, where that can begin anywhere.
    """

    def __init__(self, iterable: Callable[[], Iterable[Nest]], indexed: IndexedBatches | None = None) -> None:
        self._indexed = indexed
        self.begins_anywhere = indexed is not None
        self._iterators = SavedIterators(lambda: iter(iterable()))

    def open(self, read: int, iterator: IteratorState) -> tuple[Iterator[Nest], int]:
        """Begin a pass."""
        if self._indexed is not None:
            self._indexed.begin_pass(read, iterator)
            return self._iterators.begin(), read
        return self._iterators.begin(iterator), 0 if iterator is None else read

    def save(self) -> IteratorState:
        """Return the state of the iterator of the pass, or the order of the batches."""
        return self._iterators.save() if self._indexed is None else self._indexed.order

    def make_iterators(self, number: int) -> None:
        """Make iterators that nobody reads, of what is no list of batches."""
        if self._indexed is None:
            self._iterators.make(number)


class ResumablePasses:
    """The batches of one `fit`.

    Args:
        reads_ahead: Whether batches are read in another thread, before the step that they are for.
        spans_epochs: Whether a pass goes on in the next epoch, until the data ends.

    Attributes:
        resumed: Where the next pass is to begin, if not at its start.
        has_length: Whether Keras asks for no more batches than there are.
        is_between_epochs: Whether Keras begins a pass that it will not read.
        seed: See `ResumableData`.
        iterators: Number of iterators over the data that were made, in other processes too.
        iterators_left: Number of those that this process has yet to make.
        draws: Whether reading a batch draws from Python's or NumPy's own random generators.
        not_saved: Why the place in the data is found by reading all of it again; empty where it is not.
        read_again: Number of batches that were read again to come to the place where the data was.
        seconds: How long that took.
    """

    def __init__(self, *, reads_ahead: bool, spans_epochs: bool) -> None:
        self._reads_ahead = reads_ahead
        self.spans_epochs = spans_epochs
        self.resumed: Place | None = None
        self.has_length = False
        self.is_between_epochs = False
        self.seed: int | None = None
        self.iterators = self.iterators_left = 0
        self.draws = False
        self._random: RandomState = None
        self._pass: _Pass | None = None
        self._first_batch = self._trained = self._trained_before = 0
        self.not_saved = ""
        self.read_again = 0
        self.seconds = 0.0

    def resume(self, place: Place, batch: int) -> None:
        """Let the first epoch begin where another process was; call it before that.

        Args:
            place: The place in the data.
            batch: The number of batches of the epoch that are trained on.
        """
        self._first_batch = batch
        self.iterators_left = place.iterators - self.iterators
        self.iterators = place.iterators
        if place.batch:
            self.resumed = place
        else:
            self._random = place.random

    def take_first_batch(self) -> tuple[int, int]:
        """Return at which batch an epoch begins, and which one that is of a pass that is to begin there."""
        batch, self._first_batch = self._first_batch, 0
        return batch, 0 if self.resumed is None else self.resumed.batch

    def begin_epoch(self, trained: int) -> None:
        """Note that an epoch begins, or goes on, after so many batches in all; passes begin at no other time."""
        self._trained = self._trained_before = trained
        if self._random is not None:
            set_random_state(self._random)
            self._random = None
        if not self.spans_epochs:
            self._pass = None

    def begin_pass(self, source: Source, *, at_once: bool = False) -> Iterator[Nest]:
        """Return an iterator over the batches of the next pass.

        Args:
            source: Gives the batches.
            at_once: Whether to ask the source for them now, and not when the first batch is asked for.
        """
        self._pass, self.resumed = _Pass(self, source, self.resumed), None
        if at_once:
            self._pass.open()
        return self._pass.read()

    @contextlib.contextmanager
    def between_epochs(self, is_unread: bool) -> Iterator[None]:
        """Within the block Keras begins a pass at the end of an epoch, which it may leave unread."""
        self.is_between_epochs = is_unread
        try:
            yield
        finally:
            self.is_between_epochs = False

    def note_trained(self, batches: int) -> None:
        """Note how many batches in all the model has trained on, just before it goes on."""
        self._trained = batches
        if self._pass is not None and self._pass.first is None:
            self._pass.first = self._trained_before - self._pass.resumed_at

    def place(self, *, at_once: bool) -> Place | None:
        """Return the place in the data after the batches that were trained on; see `ResumableData`.

        Where batches are read ahead, the state of the iterator is that after some later batch. It is used when the
        model has trained on that one; at once it is that of the begin of the pass.
        """
        if self.resumed is not None:
            return self.resumed  # nothing is read yet
        trained = 0 if self._pass is None or self._pass.first is None else self._trained - self._pass.first
        if self._pass is None or not trained:
            return Place(0, 0, None, random_state(), None, iterators=self.iterators)
        return self._pass.place(trained, ahead=self._reads_ahead, at_once=at_once)


class _Pass:
    """One pass over the data.

    Attributes:
        first: Number of batches in all that the model had trained on before this pass, or `None` until it is known.
        resumed_at: At which batch it began.
    """

    def __init__(self, data: ResumablePasses, source: Source, resumed: Place | None) -> None:
        self._data = data
        self._source = source
        self._resumed = resumed
        self.first: int | None = None
        self.resumed_at = 0 if resumed is None else resumed.batch
        self._iterator: Iterator[Nest] = iter(())
        self._is_open = False
        self._iterators_before = 0
        self._next: list[Nest] = []  # read, and not given yet
        self._read = 0
        self._rows = 0 if resumed is None else resumed.rows
        self._random_at_start: RandomState = None if resumed is None else resumed.random_at_start
        self._begin = resumed or Place(0, 0, None, None, None)
        self._taken: Place | None = None
        self._is_wanted = False

    def place(self, trained: int, *, ahead: bool, at_once: bool) -> Place | None:
        ahead = ahead or self._read != trained
        if not ahead or self._data.not_saved or self._source.begins_anywhere:
            self._take(trained)
        place, self._taken = self._taken, None
        if place is None or place.read > trained:
            self._taken, self._is_wanted = place, place is None
            if not at_once:
                return None
            place = self._begin
        if not self._has_more(trained, ahead=ahead):
            return None
        if not self._data.draws:
            place = place._replace(random=random_state())  # what callbacks have drawn since
        return place._replace(batch=trained, rows=self._rows)

    def _has_more(self, trained: int, *, ahead: bool) -> bool:
        """Return whether there is another batch: of data without a length Keras asks once too often."""
        if self._data.has_length or self._read > trained:
            return True
        if ahead:
            return False  # it may come, and nobody else can read here
        if not self._next:
            self._next = list(itertools.islice(self._iterator, 1))
        return bool(self._next)

    def read(self) -> Iterator[Nest]:
        if not self._is_open:
            self.open()
        while True:
            if self._is_wanted:
                self._is_wanted = False
                self._take(self._read)
            before = _fingerprint_of_random_state()
            try:
                batch = self._next.pop() if self._next else next(self._iterator)
            except StopIteration:
                return
            self._data.draws |= _fingerprint_of_random_state() != before
            self._read += 1
            self._rows = max(self._rows, _rows_of(batch))
            yield batch

    def open(self) -> None:
        """Ask the source for the batches."""
        self._is_open = True
        resumed = self._resumed
        if resumed is None or resumed.iterator is None:
            self._source.make_iterators(self._data.iterators_left)
        self._data.iterators_left = 0
        self._iterators_before = self._data.iterators
        self._data.iterators += 1
        if resumed is None:
            self._random_at_start = random_state()
            self._begin = Place(0, 0, None, None, self._random_at_start, 0, self._iterators_before)
            self._iterator, _ = self._source.open(0, None)
            return
        begun = time.monotonic()
        set_random_state(resumed.random_at_start)
        self._iterator, first = self._source.open(resumed.read, resumed.iterator)
        self._skip(resumed.read - first)
        if resumed.random is not None:
            set_random_state(resumed.random)
        self._skip(resumed.batch - resumed.read)
        self._read = resumed.batch
        self._data.read_again, self._data.seconds = resumed.batch - first, time.monotonic() - begun

    def _skip(self, batches: int) -> None:
        for _ in range(batches):
            next(self._iterator, None)

    def _take(self, read: int) -> None:
        """Take the state of the iterator, while nobody reads from it.

        Args:
            read: The number of batches to read again where it has none.
        """
        now = read if self._source.begins_anywhere else self._read
        place = Place(0, now, None, random_state(), self._random_at_start, self._rows, self._iterators_before)
        try:
            self._taken = place._replace(iterator=self._source.save())
        except CannotSaveError as error:
            self._data.not_saved = str(error)
            self._taken = place if self._read == read else place._replace(read=read, random=None)


def _rows_of(batch: Nest) -> int:
    shapes = [leaf.shape for leaf in tree.flatten(batch) if getattr(leaf, "shape", ())]
    return int(shapes[0][0] or 0) if shapes else 0


def _fingerprint_of_random_state() -> tuple[object, ...]:
    state = np.random.get_state(legacy=False)["state"]
    key = state.get("key")  # of NumPy's default, the Mersenne Twister
    return hash(random.getstate()), repr(state) if key is None else (hash(key.tobytes()), state["pos"])


def random_state() -> RandomState:
    """Return the states of Python's and NumPy's own random generators."""
    return {"python": random.getstate(), "numpy": np.random.get_state()}


def set_random_state(state: RandomState) -> None:
    """Set the states of Python's and NumPy's own random generators."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
