"""Where the batches of a pass over the data come from, how its position is saved, and how it can begin anywhere."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from keras_tpu_ext._runtime.common.padding import GivesPaddedBatches
from keras_tpu_ext._runtime.common.random_state import random_state
from keras_tpu_ext._runtime.common.types import Dataset, IteratorState, Nest, RandomState
from keras_tpu_ext._runtime.compat import PyDataset
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


class IndexedBatches(PyDataset):  # type: ignore[misc, valid-type, unused-ignore]
    """The batches of another `PyDataset`, shuffled here as Keras would shuffle them.

    Args:
        batches: The other `PyDataset`.
        shuffle: Whether each pass has its own order, drawn from Python's random generator.
        read_ahead: Whether batches are read in another thread, so that the random states are kept for each of them.
    """

    def __init__(self, batches: Dataset, *, shuffle: bool, read_ahead: bool) -> None:
        names = ("workers", "use_multiprocessing", "max_queue_size")
        super().__init__(**{name: getattr(batches, name) for name in names if hasattr(batches, name)})
        self._batches = batches
        self._shuffle = shuffle
        self._read_ahead = read_ahead
        self.order: list[int] | None = None  # of the pass; `None` if it is that of the other `PyDataset`
        self._first = 0
        self._has_begun = False
        self.is_read = False  # whether the current pass is being read; if so, the next read begins a new pass
        self._process = os.getpid()
        self._random_before: dict[int, RandomState] = {}
        self._lock = threading.Lock()  # other threads read ahead
        # Gives the other `PyDataset` the attributes that it had in another process; `None` once it has them.
        self.restore: Callable[[], object] | None = None
        self.is_in_epoch = False  # whether it had these in an epoch, after its hook at the start of the epoch

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker process needs; the random states are not needed there."""
        others = {"_read_ahead": False, "_random_before": {}, "_lock": None, "restore": None}
        return {**vars(self), **others}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state in a worker process, which leaves Ctrl-C to the training."""
        self.__dict__.update(state)
        if os.getpid() != self._process and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def begin_pass(self, first: int = 0, order: list[int] | None = None) -> None:
        """Begin a pass, unless one has begun.

        Args:
            first: The number of the batch to begin with.
            order: The order of the pass; `None` to draw it, if it is to be shuffled.
        """
        if self._has_begun:
            return
        self._has_begun, self._first, self.order = True, first, order
        self._random_before = {}
        if self.restore is not None:
            self.restore()
            if not self.is_in_epoch:
                self.restore = None
        size = self.size()
        if order is not None and not _is_order(order, size):
            raise CheckpointError(f"the order of the batches that was saved is none of {size} batches")
        if order is None and self._shuffle and size is not None:
            self.order = list(range(size))
            random.shuffle(self.order)

    def read_pass(self, first: int = 0, order: list[int] | None = None) -> None:
        """Begin a pass and read it now, unless one has begun that is not being read yet; see `begin_pass`."""
        if self.is_read:
            self._has_begun = False
        self.begin_pass(first, order)
        self.is_read = True

    def end_epoch(self) -> None:
        """Notify the other `PyDataset` that its epoch has ended; the pass may continue."""
        self._batches.on_epoch_end()
        self.restore = None

    def end_pass(self) -> None:
        """Notify the other `PyDataset` that its epoch has ended, and forget the order of the pass."""
        self.end_epoch()
        self._has_begun, self.is_read, self._first, self.order = False, False, 0, None

    def random_before(self, batch: int) -> RandomState:
        """Return the random states before a batch of the pass was read, or `None`; forget those of earlier ones."""
        with self._lock:
            self._random_before = {index: state for index, state in self._random_before.items() if index >= batch}
            return self._random_before.get(batch)

    def __getitem__(self, index: int) -> Nest:
        """Return a batch by its index in the pass."""
        index += self._first
        # Not in a forked process: another thread may have held the lock during the fork.
        if self._read_ahead and os.getpid() == self._process:
            with self._lock:
                self._random_before[index] = random_state()
        return self._batches[index if self.order is None else self.order[index]]

    def __len__(self) -> int:
        """Return the number of batches of the pass."""
        return int(self.size() or 0) - self._first

    @property
    def num_batches(self) -> int | None:
        """The number of batches of the pass; `None` if it has no end."""
        return None if self.size() is None else len(self)

    def on_epoch_begin(self) -> None:
        """Notify the other `PyDataset`."""
        getattr(self._batches, "on_epoch_begin", lambda: None)()
        if self.restore is not None:
            self.restore()
            self.restore = None

    def on_epoch_end(self) -> None:
        """Do nothing until `end_pass`: Keras 2's workers call this while the model is still training on the epoch."""

    def size(self) -> int | None:
        """Return the number of batches of a whole pass; `None` if it has no end."""
        return self._batches.num_batches if hasattr(self._batches, "num_batches") else len(self._batches)


def _is_order(order: object, size: int | None) -> bool:
    is_list = isinstance(order, list) and all(type(one) is int for one in order)
    return is_list and sorted(order) == list(range(size or 0))  # type: ignore[call-overload]


class IndexedPaddedBatches(IndexedBatches, GivesPaddedBatches):
    """`IndexedBatches` of padded batches."""


def indexed(batches: Dataset, *, shuffle: bool, read_ahead: bool) -> IndexedBatches:
    """Return the batches of a `PyDataset` as `IndexedBatches`."""
    kind = IndexedPaddedBatches if isinstance(batches, GivesPaddedBatches) else IndexedBatches
    return kind(batches, shuffle=shuffle, read_ahead=read_ahead)


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
