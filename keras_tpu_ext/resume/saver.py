"""Write checkpoints in a background thread, one after the other."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from keras_tpu_ext.resume.checkpoint import Checkpoint, CheckpointFolder, Found
from keras_tpu_ext.resume.lock import FolderLock

# The last thread of this process that wrote, by folder: a `fit` that was ended at once leaves it behind. It ends
# after its `Future`, when the folder is free.
_threads: dict[str, threading.Thread] = {}


class Saver:
    """Writes checkpoints while training continues.

    The process does not end before the current write does, even if nothing waits for it.
    """

    def __init__(self, folder: CheckpointFolder, lock: FolderLock) -> None:
        self._folder = folder
        self._lock = lock
        self._writing: Future[Found] | None = None
        self._seconds = 0.0  # of the last one
        self._begun = 0.0  # when the last one did
        self.last: Found | None = None  # the last complete checkpoint
        self.has_failed = False  # whether the last write that ended has failed

    def wait_for_others(self) -> None:
        """Wait until another `fit` of this process has written into the folder, or failed to."""
        thread = _threads.get(os.path.abspath(self._folder.path))
        if thread is not None and thread.is_alive():
            thread.join()

    def is_writing(self) -> bool:
        """Return whether a checkpoint is being written."""
        return self._writing is not None and not self._writing.done()

    @property
    def seconds(self) -> float:
        """The seconds that a write takes: those of the last one, or those of the current one so far."""
        return max(self._seconds, time.monotonic() - self._begun) if self.is_writing() else self._seconds

    def begin(self, checkpoint: Callable[[], Checkpoint]) -> None:
        """Begin to write a checkpoint; `finish` the previous one."""
        self._writing, self._begun = Future(), time.monotonic()
        thread = threading.Thread(target=self._write, args=(checkpoint, self._writing), name="AutoResume")
        _threads[os.path.abspath(self._folder.path)] = thread
        thread.start()

    def fail(self, error: Exception) -> None:
        """Note that there is nothing to write, because the content could not be read."""
        self._writing = Future()
        self._fail(self._writing, error)

    def finish(self) -> None:
        """Wait until the current write has ended, if there is one."""
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                self.has_failed = True
                self.last = writing.result()
                self.has_failed = False
        finally:
            del writing  # otherwise it keeps the error, and the error keeps this frame

    def close(self) -> None:
        """Wait for the current write, whether or not it succeeds."""
        if self._writing is not None:
            self._writing.exception()

    def release(self) -> None:
        """Let others write into the folder, once the current write has ended."""
        if self._writing is None:
            self._lock.release()
        else:
            self._writing.add_done_callback(lambda writing: self._lock.release())

    def _write(self, checkpoint: Callable[[], Checkpoint], writing: Future[Found]) -> None:
        try:
            self._lock.check()
            found = self._folder.write(checkpoint())
        except BaseException as error:
            self._fail(writing, error)
            return
        finally:
            self._seconds = time.monotonic() - self._begun
        writing.set_result(found)

    def _fail(self, writing: Future[Found], error: BaseException) -> None:
        error.__cause__ = error.__context__ = None  # frames hold everything that was to be written
        writing.set_exception(error.with_traceback(None))


def copied_to_host(checkpoint: Checkpoint) -> Checkpoint:
    """Copy the variables to the host, and release their copies on the device.

    Weights are looked at, too: a step can make them NaN, and only the loss of the next one shows it.
    """
    variables = checkpoint.variables
    for number, one in enumerate(variables):
        variables[number] = one._replace(value=np.asarray(one.value))
    losses = [one.value for one in variables if one.role == "metric" and "loss" in one.path]
    has_nan = any(
        np.isnan(one.value).any() for one in variables if one.role == "weight" and one.value.dtype.kind in "fV"
    )
    return dataclasses.replace(checkpoint, diverged=checkpoint.diverged or is_not_finite(losses) or has_nan)


def is_not_finite(values: Sequence[Any]) -> bool:
    """Return whether one of some values holds a number that is not finite."""
    try:
        return not all(np.isfinite(value).all() for value in values)
    except (TypeError, ValueError):  # a user's metric may be anything
        return False
