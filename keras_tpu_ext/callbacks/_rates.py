"""The rates and step times that `Throughput` keeps of a `fit`, in bounded memory."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")

# The names of the rates in `logs`.
BATCHES_PER_SEC = "throughput/batches_per_sec"
SAMPLES_PER_SEC = "throughput/samples_per_sec"

_BUCKETS_PER_E = 100  # each is one per cent wide, so a time is known to half of one
_ZERO_BUCKET = -(10**6)  # for times that the clock does not resolve
_MAX_PENDING = 4096


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


class RateWindow:
    """Steps per second over the last `size` executions, and the totals of all.

    Args:
        size: Number of executions in the window.

    Attributes:
        steps: Steps added so far.
        seconds: Seconds added so far.
    """

    def __init__(self, size: int) -> None:
        self.steps = 0
        self.seconds = 0.0
        # Running totals, one more than executions: a rate is a difference of two, without a sum.
        self._totals: deque[tuple[int, float]] = deque([(0, 0.0)], maxlen=size + 1)

    def add(self, executions: Iterable[tuple[int, float]]) -> None:
        """Add executions, each as its number of steps and its seconds."""
        for steps, seconds in executions:
            self.steps += steps
            self.seconds += seconds
            self._totals.append((self.steps, self.seconds))

    def rate(self) -> float | None:
        """Return steps per second over the window; `None` before any time has passed in it."""
        first_steps, first_seconds = self._totals[0]
        seconds = self.seconds - first_seconds
        return (self.steps - first_steps) / seconds if seconds > 0 else None


class StepTimes:
    """A histogram of step times, in buckets of constant relative width."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, float]] = []
        self._steps: Counter[int] = Counter()
        self._min, self._max = math.inf, 0.0

    def add(self, executions: Iterable[tuple[int, float]]) -> None:
        """Add executions, each as its number of steps and their seconds, which the steps share evenly."""
        self._pending.extend(executions)
        if len(self._pending) >= _MAX_PENDING:
            self._flush()

    def percentiles(self) -> StepTimePercentiles | None:
        """Return the percentiles, by nearest rank and to half a per cent; `None` without a step."""
        self._flush()
        if not self._steps:
            return None
        return StepTimePercentiles(*map(self._percentile, (0.5, 0.9, 0.99)))

    def __add__(self, other: StepTimes) -> StepTimes:
        """Return the histogram of the steps of both."""
        both = StepTimes()
        for one in (self, other):
            one._flush()
            both._steps.update(one._steps)
            both._min, both._max = min(both._min, one._min), max(both._max, one._max)
        return both

    def _flush(self) -> None:
        """Put pending executions into buckets: all at once, in a fraction of the time."""
        if not self._pending:
            return
        steps, seconds = np.array(self._pending).T
        each = seconds / steps
        self._pending.clear()
        buckets = np.full(len(each), _ZERO_BUCKET)
        buckets[each > 0] = np.rint(np.log(each[each > 0]) * _BUCKETS_PER_E)
        for bucket in np.unique(buckets):
            self._steps[int(bucket)] += int(steps[buckets == bucket].sum())
        self._min, self._max = min(self._min, float(each.min())), max(self._max, float(each.max()))

    def _percentile(self, part: float) -> float:
        remaining = math.ceil(part * self._steps.total())
        for bucket in sorted(self._steps):
            remaining -= self._steps[bucket]
            if remaining <= 0:
                break
        return min(max(math.exp(bucket / _BUCKETS_PER_E), self._min), self._max)


class DecimatedList(Generic[T]):
    """A list that keeps every item until there are `limit`, then every second, every fourth, and so on.

    Args:
        limit: Most items to keep, at least 2.
    """

    def __init__(self, limit: int) -> None:
        self.items: list[T] = []
        self._limit = limit
        self._stride = 1
        self._skip = 0

    def append(self, item: T) -> None:
        """Add `item`, unless the stride skips it."""
        if self._skip:
            self._skip -= 1
            return
        if len(self.items) >= self._limit:
            del self.items[1::2]
            self._stride *= 2
        self.items.append(item)
        self._skip = self._stride - 1
