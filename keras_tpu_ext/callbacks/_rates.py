"""The rates and step times of a `fit`, and what writes them for TensorBoard."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from keras_tpu_ext._runtime.common.event_file import EventFile, EventFileClass

# The names of the rates in `logs`.
BATCHES_PER_SEC = "throughput/batches_per_sec"
SAMPLES_PER_SEC = "throughput/samples_per_sec"


class ThroughputRecord(NamedTuple):
    """The rolling rate after one execution.

    Attributes:
        epoch: Number of the epoch, from 0.
        batch: Index in the epoch of the execution's first batch.
        seconds: Seconds from the start of `fit` to the end of the execution.
        batches_per_sec: Batches per second over the window.
        samples_per_sec: Samples per second over the window, or `None` if they are not known.
    """

    epoch: int
    batch: int
    seconds: float
    batches_per_sec: float
    samples_per_sec: float | None


class EpochThroughput(NamedTuple):
    """The rate of one epoch.

    Attributes:
        epoch: Number of the epoch, from 0.
        began: Seconds from the start of `fit` to the start of the first batch.
        ended: Seconds from the start of `fit` to the end of the last batch, before any validation.
        batches_per_sec: Batches per second; NaN where nothing in the epoch was measured.
        samples_per_sec: Samples per second, NaN likewise, or `None` if they are not known.
        step_seconds_p50: Median of the seconds of a step; NaN where nothing in the epoch was measured.
        step_seconds_p90: Their 90th percentile.
        step_seconds_p99: Their 99th percentile.
    """

    epoch: int
    began: float
    ended: float
    batches_per_sec: float
    samples_per_sec: float | None
    step_seconds_p50: float = math.nan
    step_seconds_p90: float = math.nan
    step_seconds_p99: float = math.nan


class StepTimePercentiles(NamedTuple):
    """Seconds of a step: half, 90 % and 99 % of the steps took no longer.

    Attributes:
        p50: The median.
        p90: The 90th percentile.
        p99: The 99th percentile.
    """

    p50: float
    p90: float
    p99: float


class StepTimes:
    """The executions of a `fit`: the steps of each, and their seconds, in 12 bytes."""

    def __init__(self) -> None:
        self._steps, self._seconds = array("i"), array("d")

    def __len__(self) -> int:
        return len(self._seconds)

    def add(self, steps: Iterable[int], seconds: Iterable[float]) -> None:
        """Add executions; the steps of one share its seconds evenly."""
        self._steps.extend(steps)
        self._seconds.extend(seconds)

    def totals(self, first: int = 0) -> tuple[int, float]:
        """Return the steps and seconds of the executions from the one at index `first` on."""
        return sum(self._steps[first:]), sum(self._seconds[first:])

    def rate(self, first: int = 0) -> float | None:
        """Return the steps per second of these; `None` if no time has passed in them."""
        steps, seconds = self.totals(first)
        return steps / seconds if seconds > 0 else None

    def percentiles(self, first: int = 0) -> StepTimePercentiles | None:
        """Return the percentiles of the steps of these, by nearest rank; `None` if there are none."""
        if first >= len(self):
            return None
        steps = np.array(self._steps[first:])
        seconds = np.array(self._seconds[first:]) / steps
        order = np.argsort(seconds)
        ranks = np.cumsum(steps[order])
        found = seconds[order][np.searchsorted(ranks, np.array([0.5, 0.9, 0.99]) * ranks[-1])]
        return StepTimePercentiles(*map(float, found))


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
