"""Write checkpoints in a thread of their own, one after the other."""

from __future__ import annotations

import concurrent.futures
import time

from keras_tpu_ext._checkpoint import CheckpointFolder, Content, Found


class Saver:
    """Writes checkpoints beside the training.

    Args:
        folder: Where to.

    Attributes:
        seconds: How long the last one took to write.
        last: The last one that is whole.
    """

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder
        self._executor = concurrent.futures.ThreadPoolExecutor(1, "AutoResume")
        self._writing: concurrent.futures.Future[Found] | None = None
        self.seconds = 0.0
        self.last: Found | None = None

    def is_writing(self) -> bool:
        """Return whether a checkpoint is being written."""
        return self._writing is not None and not self._writing.done()

    def begin(self, content: Content) -> None:
        """Begin to write a checkpoint; the one before must be done.

        Raises:
            OSError: If the one before could not be written.
        """
        self.finish()
        self._writing = self._executor.submit(self._write, content)

    def finish(self) -> None:
        """Wait until what was begun is written.

        Raises:
            OSError: If it could not be.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            self.last = writing.result()

    def close(self) -> None:
        """End the thread, after what it writes."""
        self._executor.shutdown()

    def _write(self, content: Content) -> Found:
        begun = time.monotonic()
        found = self._folder.write(content)
        self.seconds = time.monotonic() - begun
        return found
