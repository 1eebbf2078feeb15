"""How long the steps of a `fit` take: percentiles of any number of steps, in little memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

_PER_E = 100  # buckets that are one per cent wide: a number is known to half of one
_INSTANT = -(10**6)  # the bucket of a time that the clock does not see
_MOST_NEW = 4096


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
    """Counts steps by how long they took, in buckets of a constant relative width."""

    def __init__(self) -> None:
        self._new: list[tuple[int, float]] = []
        self._steps: Counter[int] = Counter()
        self._least, self._most = math.inf, 0.0

    def add(self, executions: Iterable[tuple[int, float]]) -> None:
        """Add executions, each with its steps and the seconds of them all, which each takes the same part of."""
        self._new.extend(executions)
        if len(self._new) >= _MOST_NEW:
            self._sort_in()

    def percentiles(self) -> StepTimePercentiles | None:
        """Return them, by nearest rank and to half a per cent; `None` while there is no step."""
        self._sort_in()
        if not self._steps:
            return None
        return StepTimePercentiles(*map(self._percentile, (0.5, 0.9, 0.99)))

    def __add__(self, other: StepTimes) -> StepTimes:
        """Return the steps of both."""
        both = StepTimes()
        for one in (self, other):
            one._sort_in()
            both._steps.update(one._steps)
            both._least, both._most = min(both._least, one._least), max(both._most, one._most)
        return both

    def _sort_in(self) -> None:
        """Put what is new into buckets: all at once, which takes a fraction of the time."""
        if not self._new:
            return
        steps, seconds = np.array(self._new).T
        each = seconds / steps
        self._new.clear()
        buckets = np.full(len(each), _INSTANT)
        buckets[each > 0] = np.rint(np.log(each[each > 0]) * _PER_E)
        for bucket in np.unique(buckets):
            self._steps[int(bucket)] += int(steps[buckets == bucket].sum())
        self._least, self._most = min(self._least, float(each.min())), max(self._most, float(each.max()))

    def _percentile(self, part: float) -> float:
        left = math.ceil(part * self._steps.total())
        for bucket in sorted(self._steps):
            left -= self._steps[bucket]
            if left <= 0:
                break
        return min(max(math.exp(bucket / _PER_E), self._least), self._most)
