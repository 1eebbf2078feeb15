"""The measurement of one `fit`: which executions count, and the rates they make."""

from __future__ import annotations

import itertools
import math
from array import array
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from keras_tpu_ext.callbacks._rates import EpochThroughput, StepTimes, ThroughputRecord

_MAX_RECORDS = 4096
_UPDATE_SECONDS = 0.2  # begins closer than this are processed together, in a fraction of the time
_LAST_ENDS = 64  # that may come in another order: on JAX Keras calls the hook in up to 32 threads
_Number = TypeVar("_Number", int, float)


class ExampleCounter:
    """Counts examples: an estimate per step while an epoch runs, the exact number at its end.

    Without a `batch_size` from the user it takes readings. If a custom `train_step` may not weight the loss tracker
    by the batch size, a count of `untrusted_per_step`, one per step and replica, is no count of examples.
    """

    def __init__(self, batch_size: int | None, untrusted_per_step: int = 0) -> None:
        self.per_step: float | None = batch_size  # examples per step, or `None` while they are not known
        # Examples in an epoch and its steps, if `batch_size` does not fit them; else `None`.
        self.mismatch: tuple[float, int] | None = None
        self.batch_size = batch_size
        self._untrusted_per_step = untrusted_per_step
        self.start_epoch()

    def start_epoch(self) -> None:
        """Reset to 0, as Keras's own counter does."""
        self._steps = 0
        self._examples = 0.0
        self._was_reset = False
        self._sizes: list[float] = []  # examples per step, as the readings of this epoch show them

    def read(self, steps: int, examples: float | None) -> None:
        """Take a reading: `examples` after `steps` whole steps of this epoch."""
        if steps <= self._steps or examples is None:
            return
        if examples <= steps * self._untrusted_per_step:
            self.per_step = None
        elif examples < self._examples:
            self._was_reset = True  # something evaluated the model in the middle of the epoch
        elif not self._was_reset:
            self.per_step = (examples - self._examples) / (steps - self._steps)
            self._sizes.append(self.per_step)
            self._steps, self._examples = steps, examples

    def estimate(self, steps: int) -> float | None:
        """Return the examples in the first `steps` steps of this epoch by the last readings, if these suffice."""
        if self.per_step is None or self._was_reset:
            return None
        return self._examples + self.per_step * (steps - self._steps)

    def total(self, steps: int, examples: float | None) -> float | None:
        """Return the examples in the epoch's `steps` steps; `examples` is the model's count, if it has one."""
        if examples is None:
            return self.estimate(steps)
        is_count = examples > steps * self._untrusted_per_step
        if self.batch_size is not None:
            fits = self.batch_size * (steps - 1) < examples <= self.batch_size * steps
            if is_count and steps and not fits:
                self.mismatch = (examples, steps)
            return examples if is_count and fits else self.estimate(steps)
        self._was_reset |= is_count and examples < self._least(steps)
        if not is_count or self._was_reset:
            return None
        if self.per_step is None and steps:
            self.per_step = examples / steps
        return examples

    def _least(self, steps: int) -> float:
        """Return the fewest examples of `steps` steps; a lower count was reset since the last reading."""
        # If readings have repeatedly shown one size, only the last batch may be smaller.
        if len(self._sizes) < 2 or min(self._sizes) < max(self._sizes):
            return self._examples
        return self._examples + self._sizes[-1] * max(steps - 1 - self._steps, 0)


class FitMeter:
    """Measures one `fit`, which began at that clock time, from its hooks.

    The hook before an execution appends to `batches` and `times`, and the one after it to `ends`; all else is done in
    `update`, at `next_update` or at the execution `next_reading` of the epoch.
    """

    # The batch index jumps by `steps_per_execution`, and the end hook names the last batch of a full execution even
    # when data ran out before it (before Keras 3.11 its first batch: see `complete_last`). And if the length of the
    # data is unknown, the epoch ends with a begin hook that gets no end hook: that one is not an execution. So an
    # execution is measured only when two later ones have begun, and `end_epoch` measures the rest.

    def __init__(
        self, *, window: int, warmup: int, batch_size: int | None, untrusted_per_step: int, began: float
    ) -> None:
        self.examples = ExampleCounter(batch_size, untrusted_per_step)
        self.records: list[ThroughputRecord] = []
        self.epochs: list[EpochThroughput] = []
        self.step_times = StepTimes()
        self.completed = 0  # executions
        self.next_update = began
        self._updates, self._stride = 0, 1  # every `_stride`-th update of the rates is recorded
        self._window = window
        self._warmup = warmup
        self._began = began
        self.begin_epoch(0)

    def begin_epoch(self, epoch: int) -> None:
        """Begin anew what is of one epoch."""
        self._epoch = epoch
        self.batches, self.times = array("i"), array("d")  # the first batch of each execution, and when it began
        self.ends: deque[tuple[int, float]] = deque(maxlen=_LAST_ENDS)  # the last batch of executions, and when
        self._measured = 0  # executions
        self._first_of_epoch = len(self.step_times)
        self.examples.start_epoch()
        self._examples_left_out: float | None = 0.0
        self._reading: tuple[int, float | None, bool] | None = None
        # Reading may take as long as a short step. When is decided by counting: if several processes train together,
        # all read.
        self.next_reading, self._spacing = max(self._warmup - self.completed, 0), self._window

    @property
    def last_batch(self) -> int:
        """Index of the last batch that an end hook named, or -1."""
        return max(self.ends, default=(-1, 0.0))[0]

    @property
    def last_begin(self) -> int:
        """Index of the first batch of the last execution that has ended, or -1."""
        count = self._ended()
        return self.batches[count - 1] if count else -1

    def complete_last(self, steps: int) -> None:
        """Assume that the last execution had `steps` batches, because the end hook named its first batch."""
        if self.ends:
            last, ended = max(self.ends)
            later = [batch for batch in self.batches if batch > last]
            self.ends.append((min([last + steps, *later]) - 1, ended))

    def update(self, read_examples: Callable[[], float | None]) -> None:
        """Measure the executions that are complete, and call `read_examples` if a reading is due."""
        self.next_update = self.times[-1] + _UPDATE_SECONDS
        self._measure(len(self.times) - 2)
        self._accept_reading()
        index, batch = len(self.times) - 1, self.batches[-1]
        if index >= self.next_reading:
            ends_warmup = self.completed - self._measured + index == self._warmup
            if batch:
                examples = read_examples() if self.examples.batch_size is None else None
                self._reading = (batch, examples, ends_warmup)
            self.next_reading = index + self._spacing
            self._spacing *= 1 if ends_warmup else 2

    def end_epoch(self, steps: int, examples: float | None) -> tuple[float, float | None]:
        """Close an epoch and return its batches and samples per second."""
        self._measure(len(self.times) - 2)
        if self._reading and self._reading[0] <= self.last_batch:
            self._accept_reading()
        total, count = self.examples.total(steps, examples), self._ended()
        leaves_out_last = bool(count and self._warmup and not self.epochs)
        if leaves_out_last:
            total = self.examples.estimate(self.batches[count - 1])
        if count:
            self.batches[count:], self.times[count:] = array("i", [steps]), array("d", [max(self.ends)[1]])
        for number in range(self._measured, count - leaves_out_last):
            self._measure(number + 1)
        self.completed += leaves_out_last
        return self._close_epoch(total)

    def rates(self) -> tuple[float | None, float | None]:
        """Return the rolling batches and samples per second of the epoch, each `None` while it is not known."""
        first = max(len(self.step_times) - self._window, self._first_of_epoch)
        batches, per_step = self.step_times.rate(first), self.examples.per_step
        return batches, None if batches is None or per_step is None else batches * per_step

    def _ended(self) -> int:
        """Return the number of executions of this epoch that have ended."""
        last = self.last_batch
        return next((i + 1 for i in reversed(range(len(self.batches))) if self.batches[i] <= last), 0)

    def _accept_reading(self) -> None:
        """Use a reading once a later hook shows that it was not made at a begin without an end."""
        if self._reading is None:
            return
        batch, examples, ends_warmup = self._reading
        self._reading = None
        self.examples.read(batch, examples)
        if ends_warmup:
            self._examples_left_out = self.examples.estimate(batch)

    def _measure(self, count: int) -> None:
        """Add the first `count` executions of the epoch to the sums, and record the rates after the last of them."""
        if count <= self._measured:
            return
        first = self._measured + max(self._warmup - self.completed, 0)
        self.completed += count - self._measured
        self._measured = count
        if first >= count:
            return
        begins = slice(first, count + 1)
        self.step_times.add(_differences(self.batches[begins]), _differences(self.times[begins]))
        batches, samples = self.rates()
        if batches is not None:
            seconds = self.times[count] - self._began
            self._record(ThroughputRecord(self._epoch, self.batches[count - 1], seconds, batches, samples))

    def _record(self, record: ThroughputRecord) -> None:
        """Record all updates until there are too many, then every second, every fourth, and so on."""
        if self._updates % self._stride == 0:
            if len(self.records) == _MAX_RECORDS:
                del self.records[1::2]
                self._stride *= 2
            self.records.append(record)
        self._updates += 1

    def _close_epoch(self, total: float | None) -> tuple[float, float | None]:
        steps, seconds = self.step_times.totals(self._first_of_epoch)
        batches = steps / seconds if seconds > 0 else math.nan
        samples = None if self.examples.per_step is None else math.nan
        if seconds > 0 and total is not None and self._examples_left_out is not None:
            samples = (total - self._examples_left_out) / seconds
        if self.times and self.ends:
            percentiles = self.step_times.percentiles(self._first_of_epoch) or ()
            span = self.times[0] - self._began, max(self.ends)[1] - self._began
            self.epochs.append(EpochThroughput(self._epoch, *span, batches, samples, *percentiles))
        return batches, samples


def _differences(values: array[_Number]) -> list[_Number]:
    return [after - before for before, after in itertools.pairwise(values)]
