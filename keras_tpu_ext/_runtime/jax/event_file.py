"""Scalars for TensorBoard, written by TensorBoard itself: TensorFlow need not be there."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from keras_tpu_ext._runtime.common.event_file import EventFile, EventFileClass
from keras_tpu_ext.errors import MissingExtraError


class TensorBoardEventFile(EventFile):
    """An event file that TensorBoard writes."""

    def __init__(self, folder: str) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(folder)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write `scalars`, by name, at `step`."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)


def event_file_class() -> EventFileClass:
    """Return the class of TensorBoard's event files."""
    # Not imported yet: that also imports a web server, and the file may never be opened.
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingExtraError(
            "log_dir needs TensorBoard, which on JAX writes the files that it shows, and this Python has none. "
            "Write: pip install tensorboard"
        )
    return TensorBoardEventFile
