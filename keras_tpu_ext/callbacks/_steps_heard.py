"""Of which steps of an epoch the callbacks have heard: Keras on JAX may tell them later, in other threads."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

from keras_tpu_ext import _runtime

# How long Keras may take until it tells the callbacks of a step.
_LONGEST_WAIT_S = 10.0


class StepsHeard:
    """The executions of one epoch, and what the callbacks have heard of them.

    Attributes:
        batches: How many batches of the epoch those had that have ended.
    """

    def __init__(self) -> None:
        self.batches = 0
        self._begun = self._told_of = self._ended = 0
        self._lock = threading.Lock()  # Keras may tell of the ends of several at once
        self._telling: dict[int, FrameType] = {}  # where it does, in each thread

    def begin(self, batch: int, batches: int) -> None:
        """Note that an execution of so many batches begins, of which all before it have ended."""
        if not _runtime.progress.end_names_last_batch():
            self.batches = batch + batches
        self._begun += 1

    def begin_to_hear(self, where: FrameType) -> None:
        """Note that Keras tells the callbacks of the end of an execution now, and where it does."""
        with self._lock:
            self._told_of += 1
            self._telling[threading.get_ident()] = where

    def hear(self, batch: int) -> None:
        """Note that all callbacks have heard of it."""
        with self._lock:
            self._ended += 1
            self._telling.pop(threading.get_ident(), None)
            if _runtime.progress.end_names_last_batch():
                self.batches = max(self.batches, batch + 1)

    def wait(self) -> bool:
        """Wait until the callbacks have heard of all; return `False` if one has failed before it did."""
        latest = time.monotonic() + _LONGEST_WAIT_S
        while self._ended < self._begun:
            with self._lock:
                told_of, telling = self._told_of, list(self._telling.values())
            if any(frame in telling for frame in _frames_of_threads()):
                latest = time.monotonic() + _LONGEST_WAIT_S
            elif told_of == self._begun:
                return self._ended == self._begun
            elif time.monotonic() > latest:  # a list of the user's that does not tell of all
                return True
            time.sleep(0.001)
        return True


def _frames_of_threads() -> Iterator[FrameType]:
    """Yield what each thread is in."""
    for frame in sys._current_frames().values():
        inner: FrameType | None = frame
        while inner is not None:
            yield inner
            inner = inner.f_back
