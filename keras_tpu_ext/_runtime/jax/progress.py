"""Counters of a model, its progress bar, and TensorBoard's files, without TensorFlow, on JAX."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from keras_tpu_ext._runtime.common.event_file import EventFileClass
from keras_tpu_ext._runtime.compat import end_names_last_batch as end_names_last_batch
from keras_tpu_ext._runtime.training.fit_watch import watch_fits as watch_fits
from keras_tpu_ext._runtime.training.overflow import loss_scale as loss_scale
from keras_tpu_ext._runtime.training.overflow import skipped_steps as skipped_steps
from keras_tpu_ext._runtime.training.progress import counts_examples as counts_examples
from keras_tpu_ext._runtime.training.progress import examples_seen as examples_seen
from keras_tpu_ext._runtime.training.progress import show_in_progress_bar as show_in_progress_bar
from keras_tpu_ext._runtime.training.progress import train_steps as train_steps
from keras_tpu_ext.errors import MissingExtraError


class TensorBoardEventFile:
    """An event file that TensorBoard writes."""

    def __init__(self, folder: str) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(folder)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write `scalars`, by name, at `step`."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Flush the file to disk."""
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


def event_file_class() -> EventFileClass:
    """Return the class of TensorBoard's event files."""
    # Not imported yet: that also imports a web server, and the file may never be opened.
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingExtraError(
            "log_dir needs TensorBoard, which on JAX writes the files that it shows, and this Python has none. "
            "Write: pip install tensorboard"
        )
    return TensorBoardEventFile
