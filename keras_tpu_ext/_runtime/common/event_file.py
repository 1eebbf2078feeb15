"""Scalars for TensorBoard, whoever writes the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol


class EventFile(Protocol):
    """An open event file of TensorBoard."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write each of `scalars` under its name at `step`."""

    def flush(self) -> None:
        """Let readers see what was written."""

    def close(self) -> None:
        """Write what is left, and nothing from then on."""


# Made from the path of a folder, which is made where it is not there.
EventFileClass = Callable[[str], EventFile]
