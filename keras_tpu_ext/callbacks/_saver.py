"""Write checkpoints in a thread of their own, one after the other."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from keras_tpu_ext._checkpoint import CheckpointFolder, Content, Found

# What is being written in this process, by folder: a `fit` that was ended at once leaves it behind.
_under_way: dict[str, Future[Found]] = {}


class Saver:
    """Writes checkpoints beside the training.

    The process ends after what is being written, even where nobody waits for that.

    Args:
        folder: Where to.

    Attributes:
        last: The last one that is whole.
        has_failed: Whether the last one that was finished is not.
    """

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder
        self._writing: Future[Found] | None = None
        self._seconds = 0.0  # of the last one
        self._begun = 0.0  # when the last one did
        self.last: Found | None = None
        self.has_failed = False

    def wait_for_others(self) -> None:
        """Wait for what another `fit` of this process is still writing into the folder, whatever comes of it."""
        writing = _under_way.get(os.path.abspath(self._folder.path))
        if writing is not None:
            writing.exception()

    def is_writing(self) -> bool:
        """Return whether a checkpoint is being written."""
        return self._writing is not None and not self._writing.done()

    @property
    def seconds(self) -> float:
        """How long it takes to write one: as long as the last one took, or takes already."""
        return max(self._seconds, time.monotonic() - self._begun) if self.is_writing() else self._seconds

    def begin(self, content: Callable[[], Content]) -> None:
        """Begin to write a checkpoint; `finish` the one before.

        Args:
            content: Returns what it is to hold; it is called in the thread.
        """
        self._writing, self._begun = Future(), time.monotonic()
        _under_way[os.path.abspath(self._folder.path)] = self._writing
        try:
            threading.Thread(target=self._write, args=(content, self._writing), name="AutoResume").start()
        except Exception as error:  # there are too many threads
            self._fail(self._writing, error)
        except BaseException:  # the second Ctrl-C
            if self._writing.cancel():
                self._writing = None
                self._forget()
            raise

    def fail(self, error: Exception) -> None:
        """Note that there is nothing to write, as what it should hold could not be had."""
        self._writing = Future()
        self._fail(self._writing, error)

    def finish(self) -> None:
        """Wait until what was begun is written, if anything was.

        Raises:
            Exception: If it could not be.
        """
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                self.has_failed = True
                self.last = writing.result()
                self.has_failed = False
        finally:
            del writing  # or it keeps the error, and the error this frame

    def close(self) -> None:
        """Wait for what is being written, whatever comes of it."""
        if self._writing is not None:
            self._writing.exception()

    def _write(self, content: Callable[[], Content], writing: Future[Found]) -> None:
        if not writing.set_running_or_notify_cancel():
            return
        try:
            found = self._folder.write(content())
        except BaseException as error:
            self._fail(writing, error)
            return
        finally:
            self._seconds = time.monotonic() - self._begun
        self._forget()
        writing.set_result(found)

    def _fail(self, writing: Future[Found], error: BaseException) -> None:
        self._forget()
        error.__cause__ = error.__context__ = None  # frames hold all that was to be written
        writing.set_exception(error.with_traceback(None))

    def _forget(self) -> None:
        _under_way.pop(os.path.abspath(self._folder.path), None)
