"""The parts of a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

# The buckets of `callbacks.Goodput` that can be planned.
BUCKETS = ("training", "compile", "input", "validation", "checkpoint", "startup")


@dataclasses.dataclass(frozen=True)
class Seconds:
    """An estimate in seconds, from the lowest to the highest.

    Attributes:
        middle: The estimate.
        low: The lowest that is likely.
        high: The highest that is likely.
    """

    middle: float
    low: float
    high: float

    @classmethod
    def exactly(cls, seconds: float) -> Seconds:
        """Return an estimate without an error."""
        return cls(seconds, seconds, seconds)

    @classmethod
    def of(cls, measured: Sequence[float]) -> Seconds:
        """Return the mean of measurements, from the shortest to the longest."""
        return cls(sum(measured) / len(measured), min(measured), max(measured))

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.middle + other.middle, self.low + other.low, self.high + other.high)

    def __mul__(self, times: float) -> Seconds:
        return Seconds(self.middle * times, self.low * times, self.high * times)

    def beyond(self, other: Seconds) -> Seconds:
        """Return by how much this is longer than `other`; 0 where it is shorter."""
        pairs = (self.middle, other.middle), (self.low, other.high), (self.high, other.low)
        return Seconds(*(max(a - b, 0.0) for a, b in pairs))

    def widened(self, fraction: float) -> Seconds:
        """Return it with bounds that are wider by a fraction of the middle."""
        return Seconds(self.middle, max(self.low - fraction * self.middle, 0.0), self.high + fraction * self.middle)


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one part of a training costs.

    Attributes:
        bucket: Its name: `"training"`, `"compile"`, `"input"`, `"validation"`, `"checkpoint"` or `"startup"`.
        seconds: How long it takes in all.
        how: How that was found.
        write: The line to write to make it cheaper; empty if there is none.
    """

    bucket: str
    seconds: Seconds
    how: str
    write: str = ""
