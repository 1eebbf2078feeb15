"""How long the steps of a `fit` take: percentiles of any number of steps, in little memory."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

_PER_E = 100  # buckets that are one per cent wide: a number is known to half of one
_INSTANT = -(10**6)  # the bucket of a time that the clock does not see


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
        self._steps: Counter[int] = Counter()
        self._least, self._most = math.inf, 0.0

    def add(self, steps: int, seconds: float) -> None:
        """Add an execution of `steps` steps that took `seconds`, each of them the same part of it."""
        each = seconds / steps
        self._steps[round(math.log(each) * _PER_E) if each > 0 else _INSTANT] += steps
        self._least, self._most = min(self._least, each), max(self._most, each)

    def percentiles(self) -> StepTimePercentiles | None:
        """Return them, by nearest rank and to half a per cent; `None` while there is no step."""
        if not self._steps:
            return None
        return StepTimePercentiles(*map(self._percentile, (0.5, 0.9, 0.99)))

    def _percentile(self, part: float) -> float:
        left = math.ceil(part * self._steps.total())
        for bucket in sorted(self._steps):
            left -= self._steps[bucket]
            if left <= 0:
                break
        return min(max(math.exp(bucket / _PER_E), self._least), self._most)
