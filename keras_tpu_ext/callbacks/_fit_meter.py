"""The measurement of one `fit`: which executions count, and the rates they make."""

from __future__ import annotations

import math
from collections.abc import Callable

from keras_tpu_ext.callbacks._epoch import EpochExecutions, ExampleCounter, Execution
from keras_tpu_ext.callbacks._rates import EpochThroughput, StepTimes, ThroughputRecord

_MAX_RECORDS = 4096
_DEFER_SECONDS = 0.2  # begins closer than this are processed together, in a fraction of the time
_MAX_SPACING = 64  # windows between two readings


class FitMeter:
    """Measures one `fit` from its hooks.

    Args:
        window: Number of executions in the rolling rate.
        warmup: Number of executions left out at the start; unless it is 0, the last one of the first epoch is
            left out too.
        batch_size: Examples per step over all replicas, or `None` to use readings.
        untrusted_per_step: Count per step up to which it may not be a count of examples, see `ExampleCounter`.
        began: Clock time in seconds at which the `fit` began.

    Attributes:
        begins: Pending begins of executions, each as its first batch and its time. The list object never changes: a
            hook only appends to it, which is cheapest.
        ends: Pending ends likewise, each as its last batch and its time.
        begun: Number of executions that have begun in this `fit`; after `flush` pending ones too.
        defer_until: Time before which a begin may be left pending.
        max_pending: Number of pending begins from which on it may not be left pending.
    """

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
        self.begun = 0
        self.begins: list[tuple[int, float]] = []
        self.ends: list[tuple[int, float]] = []
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
        """Add the begin of an execution, and process what is pending.

        If a reading is due, `read_examples` is called, less and less often while batches keep their size: it may take
        as long as a short step. When it is due is decided by counting: if several processes train together, all read.
        """
        self.begins.append((batch, now))
        self.flush()
        after_warmup = self.begun - 1 - self._warmup
        if after_warmup >= self._next_reading:
            if batch:
                examples = read_examples() if self.examples.needs_readings else None
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
        """Return the rolling batches and samples per second, each `None` while it is not known."""
        batches, per_step = self.step_times.rate(-self._window), self.examples.per_step
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
        for execution in counted:
            self.step_times.add(execution.steps, execution.seconds)
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
