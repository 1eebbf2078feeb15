"""An event file, which holds scalars for TensorBoard; each framework has a subclass that writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class EventFile:
    """An open event file."""

    _writer: Any  # the framework's own

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write `scalars`, by name, at `step`."""
        raise NotImplementedError

    def flush(self) -> None:
        """Flush the file to disk."""
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


# Takes the path of a log directory, which is created if it does not exist.
EventFileClass = Callable[[str], EventFile]
