"""The interface of an event file, which holds scalars for TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol


class EventFile(Protocol):
    """An open event file."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write `scalars`, by name, at `step`."""

    def flush(self) -> None:
        """Flush the file to disk."""

    def close(self) -> None:
        """Flush and close the file."""


# Takes the path of a log directory, which is created if it does not exist.
EventFileClass = Callable[[str], EventFile]
