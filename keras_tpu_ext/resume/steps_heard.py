"""The steps of an epoch that callbacks were called for: Keras on JAX may call them later, in other threads."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

from keras_tpu_ext import _runtime

# How long Keras may take until it calls the callbacks for a step.
_LONGEST_WAIT_S = 10.0


class StepsHeard:
    """The executions of one epoch, and those for which the callbacks have been called."""

    def __init__(self) -> None:
        self.batches = 0  # number of batches in the executions of the epoch that have ended
        self._begun = self._told_of = self._ended = 0
        self._lock = threading.Lock()  # Keras may report several ends at once
        self._telling: dict[int, FrameType] = {}  # the frame of the call, in each thread

    def begin(self, batch: int, batches: int) -> None:
        """Note that an execution of this many batches begins; all earlier ones have ended."""
        if not _runtime.progress.end_names_last_batch():
            self.batches = batch + batches
        self._begun += 1

    def begin_to_hear(self, where: FrameType) -> None:
        """Note that Keras now calls the callbacks for the end of an execution, and from which frame."""
        with self._lock:
            self._told_of += 1
            self._telling[threading.get_ident()] = where

    def hear(self, batch: int) -> None:
        """Note that all callbacks have been called for it."""
        with self._lock:
            self._ended += 1
            self._telling.pop(threading.get_ident(), None)
            if _runtime.progress.end_names_last_batch():
                self.batches = max(self.batches, batch + 1)

    def wait(self) -> bool:
        """Wait until the callbacks have been called for all; return `False` if one has failed before."""
        latest = time.monotonic() + _LONGEST_WAIT_S
        while self._ended < self._begun:
            with self._lock:
                told_of, telling = self._told_of, list(self._telling.values())
            if any(frame in telling for frame in _frames_of_threads()):
                latest = time.monotonic() + _LONGEST_WAIT_S
            elif told_of == self._begun:
                return self._ended == self._begun
            elif time.monotonic() > latest:  # a user's callback list that does not report all
                return True
            time.sleep(0.001)
        return True


def _frames_of_threads() -> Iterator[FrameType]:
    """Yield the current frame of each thread."""
    for frame in sys._current_frames().values():
        inner: FrameType | None = frame
        while inner is not None:
            yield inner
            inner = inner.f_back
