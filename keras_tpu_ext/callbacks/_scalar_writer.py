"""The scalars that `Throughput` writes for TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from keras_tpu_ext._runtime.common.event_file import EventFile, EventFileClass


class ScalarWriter:
    """Writes rates every `every` executions and after each epoch; opens the file when it first writes."""

    def __init__(self, open_file: EventFileClass, folder: str, *, every: int) -> None:
        self._open_file = open_file
        self._folder = folder
        self._every = every
        self._executions = 0
        self._file: EventFile | None = None

    def begin_execution(self, step: int, read: Callable[[], Mapping[str, float]]) -> None:
        """Count an execution that begins with `step`; at every `every`-th write the scalars that `read` returns."""
        self._executions += 1
        if self._executions % self._every == 0:
            self._write(step, read())

    def end_epoch(self, epoch: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of an epoch, with "epoch_" before their names as Keras's TensorBoard callback has it."""
        self._write(epoch, {f"epoch_{name}": value for name, value in scalars.items()})
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, step: int, scalars: Mapping[str, float]) -> None:
        known = {name: value for name, value in scalars.items() if not math.isnan(value)}
        if known:
            self._file = self._file or self._open_file(self._folder)
            self._file.write(step, known)
