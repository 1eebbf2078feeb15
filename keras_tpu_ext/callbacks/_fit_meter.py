"""The measurement of one `fit`: which executions count, and the rates they make."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from keras_tpu_ext.callbacks._rates import EpochThroughput, StepTimes, ThroughputRecord

_MAX_RECORDS = 4096
_DEFER_SECONDS = 0.2  # begins closer than this are processed together, in a fraction of the time
_MAX_SPACING = 64  # windows between two readings


class Execution(NamedTuple):
    """One call of the train function."""

    batch: int  # index in the epoch of its first batch
    steps: int  # number of batches it ran
    seconds: float  # seconds from its start to the next one's, or to its own end for the last of an epoch
    ended: float  # clock time at which those seconds were over


class EpochExecutions:
    """Times the executions of one epoch from `on_train_batch_begin` and `on_train_batch_end`."""

    # The batch index jumps by `steps_per_execution`, and the end hook names the last batch of a full execution even
    # when data ran out before it (before Keras 3.11 its first batch: see `complete_last`). And if the length of the
    # data is unknown, the epoch ends with a begin hook that gets no end hook: that one is not an execution. So an
    # execution is returned only when two later ones have begun, and `finish` returns the rest.

    def __init__(self) -> None:
        self.started: float | None = None  # clock time of the first begin, or `None`
        self.ended: float | None = None  # clock time of the last end, or `None`
        self.last_batch = -1  # index of the last batch that an end hook named, or -1
        self._begins: list[tuple[int, float]] = []

    @property
    def last_begin(self) -> int:
        """Index of the first batch of the last execution that has ended, or -1."""
        return max((batch for batch, _ in self._begins if batch <= self.last_batch), default=-1)

    def begin(self, begins: Sequence[tuple[int, float]]) -> list[Execution]:
        """Add begins of executions, each as its first batch and its time; return the executions now complete."""
        if self.started is None and begins:
            self.started = begins[0][1]
        known = [*self._begins, *begins]
        self._begins = known[-2:]
        return _between(known[:-1])

    def end(self, batch: int, now: float) -> None:
        """Add the end of the execution whose last batch is `batch`."""
        if batch > self.last_batch:  # on JAX the hooks may arrive out of order
            self.last_batch, self.ended = batch, now

    def complete_last(self, steps: int) -> None:
        """Assume that the last execution had `steps` batches, because the end hook named its first batch."""
        if self.last_batch >= 0:
            later = [batch for batch, _ in self._begins if batch > self.last_batch]
            self.last_batch = min([self.last_batch + steps, *later]) - 1

    def finish(self) -> list[Execution]:
        """Return the executions not returned yet, oldest first; the last is the last of the epoch."""
        begins = [begin for begin in self._begins if begin[0] <= self.last_batch]
        if not begins or self.ended is None:
            return []
        batch, begun = begins[-1]
        last = Execution(batch, self.last_batch + 1 - batch, self.ended - begun, self.ended)
        return [*_between(begins), last]


def _between(begins: list[tuple[int, float]]) -> list[Execution]:
    pairs = itertools.pairwise(begins)
    return [Execution(batch, later - batch, ended - begun, ended) for (batch, begun), (later, ended) in pairs]


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
        counted = examples if examples is not None and examples > steps * self._untrusted_per_step else None
        if self.batch_size is not None:
            return self._total_of_given(self.batch_size, steps, counted)
        if examples is None:
            return self.estimate(steps)
        self._was_reset = self._was_reset or (counted is not None and counted < self._least(steps))
        if counted is None or self._was_reset:
            return None
        if self.per_step is None and steps:
            self.per_step = counted / steps
        return counted

    def _least(self, steps: int) -> float:
        """Return the fewest examples of `steps` steps; a lower count was reset since the last reading."""
        # If readings have repeatedly shown one size, only the last batch may be smaller.
        if len(self._sizes) < 2 or min(self._sizes) < max(self._sizes):
            return self._examples
        return self._examples + self._sizes[-1] * max(steps - 1 - self._steps, 0)

    def _total_of_given(self, batch_size: int, steps: int, counted: float | None) -> float:
        if counted is None or not steps:
            return float(batch_size * steps)
        if batch_size * (steps - 1) < counted <= batch_size * steps:
            return counted
        self.mismatch = (counted, steps)
        return float(batch_size * steps)


class FitMeter:
    """Measures one `fit`, which began at that clock time, from its hooks."""

    def __init__(
        self, *, window: int, warmup: int, batch_size: int | None, untrusted_per_step: int, began: float
    ) -> None:
        self.examples = ExampleCounter(batch_size, untrusted_per_step)
        self.records: list[ThroughputRecord] = []
        self.epochs: list[EpochThroughput] = []
        self.step_times = StepTimes()
        self.completed = 0
        self._updates, self._stride = 0, 1  # every `_stride`-th update of the rates is recorded
        self._window = window
        self._warmup = warmup
        self._began = began
        self.begun = 0  # executions that have begun; after `flush` pending ones too
        # Pending begins, each as its first batch and its time, and ends, each as its last batch and its time. The
        # list objects never change: a hook only appends to them, which is cheapest.
        self.begins: list[tuple[int, float]] = []
        self.ends: list[tuple[int, float]] = []
        # Until when, and up to how many, begins may be left pending.
        self.defer_until, self.max_pending = began, 0
        self._next_reading, self._spacing = 0, window
        self.begin_epoch(0)

    def begin_epoch(self, epoch: int) -> None:
        """Reset the sums of an epoch."""
        self._epoch = epoch
        self.executions = EpochExecutions()
        self.begins.clear()
        self.ends.clear()
        self.examples.start_epoch()
        self._first_of_epoch = len(self.step_times)
        self._examples_left_out: float | None = 0.0
        self._reading: tuple[int, float | None, bool] | None = None

    def begin(self, batch: int, now: float, read_examples: Callable[[], float | None]) -> None:
        """Add the begin of an execution, process what is pending, and call `read_examples` if a reading is due."""
        self.begins.append((batch, now))
        self.flush()
        # It may take as long as a short step, so it is done less and less often while batches keep their size. When
        # is decided by counting: if several processes train together, all read.
        after_warmup = self.begun - 1 - self._warmup
        if after_warmup >= self._next_reading:
            if batch:
                examples = read_examples() if self.examples.batch_size is None else None
                self._reading = (batch, examples, after_warmup == 0)
            self._next_reading = after_warmup + self._spacing
        self.defer_until, self.max_pending = now + _DEFER_SECONDS, self._warmup + self._next_reading - self.begun

    def flush(self) -> None:
        """Process pending begins and ends."""
        count = len(self.ends)  # Keras on JAX may append another one in the meantime, in another thread
        if count:
            self.executions.end(*max(self.ends[:count]))
            del self.ends[:count]
        if self.begins:
            self._measure(self.executions.begin(self.begins))
            self._accept_reading()
            self.begun += len(self.begins)
            self.begins.clear()

    def end_epoch(self, steps: int, examples: float | None) -> tuple[float, float | None]:
        """Close an epoch and return its batches and samples per second."""
        self.flush()
        if self._reading and self._reading[0] <= self.executions.last_batch:
            self._accept_reading()
        total = self.examples.total(steps, examples)
        rest = self.executions.finish()
        leave_out_last = bool(rest and self._warmup and not self.epochs)
        if leave_out_last:
            total = self.examples.estimate(rest.pop().batch)
        elif rest:
            rest[-1] = rest[-1]._replace(steps=steps - rest[-1].batch)
        for execution in rest:
            self._measure([execution])
        self.completed += leave_out_last
        self.begun = self.completed  # a begin without an end was not an execution
        return self._close_epoch(total)

    def rates(self) -> tuple[float | None, float | None]:
        """Return the rolling batches and samples per second of the epoch, each `None` while it is not known."""
        first = max(len(self.step_times) - self._window, self._first_of_epoch)
        batches, per_step = self.step_times.rate(first), self.examples.per_step
        return batches, None if batches is None or per_step is None else batches * per_step

    def _accept_reading(self) -> None:
        """Use a reading once a later hook shows that it was not made at a begin without an end."""
        if self._reading is None:
            return
        batch, examples, ends_warmup = self._reading
        self._reading = None
        before = self.examples.per_step
        self.examples.read(batch, examples)
        if ends_warmup:
            self._examples_left_out = self.examples.estimate(batch)
        else:
            is_steady = self.examples.per_step == before
            self._spacing = min(2 * self._spacing, _MAX_SPACING * self._window) if is_steady else self._window

    def _measure(self, executions: list[Execution]) -> None:
        """Add executions to the sums, and record the rates after the last of them."""
        counted = executions[max(self._warmup - self.completed, 0) :]
        self.completed += len(executions)
        if not counted:
            return
        self.step_times.add([one.steps for one in counted], [one.seconds for one in counted])
        batches, samples = self.rates()
        if batches is not None:
            seconds = counted[-1].ended - self._began
            self._record(ThroughputRecord(self._epoch, counted[-1].batch, seconds, batches, samples))

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
        started, ended = self.executions.started, self.executions.ended
        if started is not None and ended is not None:
            percentiles = self.step_times.percentiles(self._first_of_epoch) or ()
            span = started - self._began, ended - self._began
            self.epochs.append(EpochThroughput(self._epoch, *span, batches, samples, *percentiles))
        return batches, samples
