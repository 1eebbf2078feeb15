"""A `PyDataset` whose batches have an order that is known outside, so that a pass over them can begin anywhere."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from typing import Any

from keras_tpu_ext._runtime.common.padding import GivesPaddedBatches
from keras_tpu_ext._runtime.common.random_state import random_state
from keras_tpu_ext._runtime.common.types import Dataset, Nest, RandomState
from keras_tpu_ext._runtime.common.worker_signals import heed_signals_in_worker, shared_with_worker
from keras_tpu_ext._runtime.compat import PyDataset


class IndexedBatches(PyDataset):  # type: ignore[misc, valid-type, unused-ignore]
    """The batches of another `PyDataset`, shuffled here as Keras would shuffle them.

    Args:
        batches: The other one.
        shuffle: Whether each pass has an order of its own, drawn from Python's random generator.
        read_ahead: Whether they are read in another thread, so that what they draw is kept for each of them.

    Attributes:
        restore: Gives the other one the attributes that it had in another process; `None` when it has.
        is_read: Whether the pass is: the next one that is read is another one.
        is_in_epoch: Whether that was in the middle of an epoch, after the other one's hook at its begin.
    """

    def __init__(self, batches: Dataset, *, shuffle: bool, read_ahead: bool) -> None:
        names = ("workers", "use_multiprocessing", "max_queue_size")
        super().__init__(**{name: getattr(batches, name) for name in names if hasattr(batches, name)})
        self._batches = batches
        self._shuffle = shuffle
        self._read_ahead = read_ahead
        self._order: list[int] | None = None
        self._first = 0
        self._has_begun = self.is_read = False
        self._process = os.getpid()
        self._random_before: dict[int, RandomState] = {}
        self._lock = threading.Lock()  # other threads read ahead
        self.restore: Callable[[], object] | None = None
        self.is_in_epoch = False

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker in a process of its own needs; there nobody asks for what was drawn."""
        others = {"_read_ahead": False, "_random_before": {}, "_lock": None, "restore": None}
        return {**vars(self), **others, "_shared": shared_with_worker()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Be there in such a worker."""
        shared = state.pop("_shared")
        self.__dict__.update(state)
        if os.getpid() != self._process:
            heed_signals_in_worker(shared)

    @property
    def order(self) -> list[int] | None:
        """The order of the pass; `None` if it is that of the other one."""
        return self._order

    def begin_pass(self, first: int = 0, order: list[int] | None = None) -> None:
        """Begin a pass, unless one has begun.

        Args:
            first: The number of the batch to begin with.
            order: The order of the pass; `None` to draw it, if it is to be shuffled.
        """
        if self._has_begun:
            return
        self._has_begun, self._first, self._order = True, first, order
        self._random_before = {}
        if self.restore is not None:
            self.restore()
            if not self.is_in_epoch:
                self.restore = None
        size = self.size()
        if order is None and self._shuffle and size is not None:
            self._order = list(range(size))
            random.shuffle(self._order)

    def read_pass(self, first: int = 0, order: list[int] | None = None) -> None:
        """Begin a pass that is read at once, unless one has begun that nobody reads yet; see `begin_pass`."""
        if self.is_read:
            self._has_begun = False
        self.begin_pass(first, order)
        self.is_read = True

    def end_epoch(self) -> None:
        """Tell the other one that its epoch has ended; the pass may go on."""
        self._batches.on_epoch_end()
        self.restore = None

    def end_pass(self) -> None:
        """Tell the other one that its epoch has ended, and forget the order of the pass."""
        self.end_epoch()
        self._has_begun, self.is_read, self._first, self._order = False, False, 0, None

    def random_before(self, batch: int) -> RandomState:
        """Return the random states before a batch of the pass was read, and forget those before it; or `None`."""
        with self._lock:
            self._random_before = {index: state for index, state in self._random_before.items() if index >= batch}
            return self._random_before.get(batch)

    def __getitem__(self, index: int) -> Nest:
        """Return a batch by its place in the pass."""
        index += self._first
        # Not in a process that was forked, perhaps while another thread held the lock.
        if self._read_ahead and os.getpid() == self._process:
            with self._lock:
                self._random_before[index] = random_state()
        return self._batches[index if self._order is None else self._order[index]]

    def __len__(self) -> int:
        """Return the number of batches of the pass."""
        return int(self.size() or 0) - self._first

    @property
    def num_batches(self) -> int | None:
        """The number of batches of the pass; `None` if it has no end."""
        return None if self.size() is None else len(self)

    def on_epoch_begin(self) -> None:
        """Tell the other one."""
        getattr(self._batches, "on_epoch_begin", lambda: None)()
        if self.restore is not None:
            self.restore()
            self.restore = None

    def on_epoch_end(self) -> None:
        """Do nothing before `end_pass`: the workers of Keras 2 call it while the model still trains on the epoch."""

    def size(self) -> int | None:
        """Return the number of batches of a whole pass; `None` if it has no end."""
        return self._batches.num_batches if hasattr(self._batches, "num_batches") else len(self._batches)


class IndexedPaddedBatches(IndexedBatches, GivesPaddedBatches):
    """The same, of padded batches."""


def indexed(batches: Dataset, *, shuffle: bool, read_ahead: bool) -> IndexedBatches:
    """Return the batches of a `PyDataset` as `IndexedBatches`."""
    kind = IndexedPaddedBatches if isinstance(batches, GivesPaddedBatches) else IndexedBatches
    return kind(batches, shuffle=shuffle, read_ahead=read_ahead)
