"""A clock that charges every second to one bucket."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

TRAINING, COMPILE, INPUT, VALIDATION = "training", "compile", "input", "validation"
CHECKPOINT, STARTUP, IDLE, LOST = "checkpoint", "startup", "idle", "lost"
OF_CALLBACKS = "callbacks/"


class Buckets:
    """Charges time to buckets, of which one is open at any time.

    Args:
        clock: Returns the time in seconds.
        compiled: Returns the seconds spent on compiling so far. Those within a bucket are charged to `compile`.
        began: When the first bucket was opened.
        bucket: That bucket.
    """

    def __init__(self, clock: Callable[[], float], compiled: Callable[[], float], began: float, bucket: str) -> None:
        self.clock, self.compiled = clock, compiled
        self.bucket = bucket
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._since, self._compiled_before = began, compiled()

    def open(self, bucket: str) -> None:
        """Open a bucket in place of another one."""
        self.charge(self.bucket, self.clock() - self._since)
        self.bucket, self._compiled_before = bucket, self.compiled()

    def charge(self, bucket: str, seconds: float) -> None:
        """Charge to a bucket what would else be charged to the open one."""
        self._since += seconds
        compiled = self.compiled()
        if compiled != self._compiled_before:
            compiling = min(compiled - self._compiled_before, seconds)
            self._seconds[COMPILE] += compiling
            self._compiled_before += compiling
            seconds -= compiling
        self._seconds[bucket] += seconds

    def add(self, bucket: str, seconds: float) -> None:
        """Add to a bucket seconds that the open one is not charged."""
        self._seconds[bucket] += seconds

    def skip(self, until: float) -> None:
        """Charge nothing until that time: something else has."""
        self._since, self._compiled_before = until, self.compiled()

    def until(self, now: float) -> dict[str, float]:
        """Return the seconds of each bucket."""
        found = dict(self._seconds)
        found[self.bucket] = found.get(self.bucket, 0.0) + now - self._since
        return found
