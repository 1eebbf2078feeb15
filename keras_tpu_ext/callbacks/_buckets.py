"""A clock that charges every second to one bucket."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

TRAINING, COMPILE, INPUT, VALIDATION = "training", "compile", "input", "validation"
CHECKPOINT, STARTUP, IDLE, LOST = "checkpoint", "startup", "idle", "lost"
OF_CALLBACKS = "callbacks/"

Seconds = tuple[str, float]  # a bucket, and what is charged to it


class Cycle(NamedTuple):
    """The time from the begin of one execution to that of the next, by bucket."""

    steps: int
    seconds: tuple[Seconds, ...]


class Buckets:
    """Charges the time of one thread to buckets, of which one is open at any time.

    While the devices compute it is training, whatever the host does: for as long as they are known to, and for all of
    a cycle if they still do at its end.

    Args:
        clock: Returns the time in seconds.
        compiled: Returns the seconds spent on compiling so far. Those within a bucket are charged to `compile`.
        began: When the first bucket was opened.
        bucket: That bucket.
    """

    def __init__(self, clock: Callable[[], float], compiled: Callable[[], float], began: float, bucket: str) -> None:
        self.clock, self._compiled = clock, compiled
        self.bucket = bucket
        self._settled: defaultdict[str, float] = defaultdict(float)
        self._cycle: list[Seconds] = []
        self._since, self._compiled_before = began, compiled()
        self._computes_until = began

    def open(self, bucket: str) -> str:
        """Open a bucket in place of another one, which is returned."""
        before, now = self.bucket, self.clock()
        self._charge([(before, now - self._since)], now)
        self.bucket = bucket
        return before

    def charge(self, parts: Sequence[Seconds]) -> None:
        """Charge parts of the time since the open bucket was last charged, one after the other."""
        self._charge(parts, self._since + sum(seconds for _, seconds in parts))

    def computes_for(self, seconds: float) -> None:
        """Note that the devices compute for that long from now on."""
        self._computes_until = self.clock() + seconds

    def relabel(self, bucket: str, other: str) -> None:
        """Charge to another bucket what this cycle has charged to one."""
        self._cycle = [(other if name == bucket else name, seconds) for name, seconds in self._cycle]

    def end_cycle(self, *, computing: bool, steps: int = 0) -> Cycle:
        """End a cycle; `computing` says whether the devices still compute."""
        self.open(self.bucket)
        if computing:
            self._cycle = [(name if name == COMPILE else TRAINING, seconds) for name, seconds in self._cycle]
        for bucket, seconds in self._cycle:
            self._settled[bucket] += seconds
        cycle = Cycle(steps, tuple(self._cycle))
        self._cycle.clear()
        return cycle

    def until(self, now: float) -> dict[str, float]:
        """Return the seconds of each bucket."""
        found = defaultdict(float, self._settled)
        for bucket, seconds in [*self._cycle, (self.bucket, now - self._since)]:
            found[bucket] += seconds
        return {bucket: seconds for bucket, seconds in found.items() if seconds > 0}

    def _charge(self, parts: Sequence[Seconds], until: float) -> None:
        compiled = self._compiled()
        if compiled != self._compiled_before:
            parts = self._without_compiling(parts, compiled - self._compiled_before)
            self._compiled_before = compiled
        overlap = self._computes_until - self._since
        self._since = until
        if overlap <= 0:
            self._cycle += parts
            return
        for bucket, seconds in parts:
            computing = min(seconds, max(overlap, 0.0))
            overlap -= computing
            self._cycle += (TRAINING, computing), (bucket, seconds - computing)

    def _without_compiling(self, parts: Sequence[Seconds], compiling: float) -> list[Seconds]:
        """Charge `compile` with what the longest of some parts has spent on it; return the parts without."""
        longest = max(range(len(parts)), key=lambda i: parts[i][1])
        compiling = min(compiling, parts[longest][1])
        self._cycle.append((COMPILE, compiling))
        rest = list(parts)
        rest[longest] = parts[longest][0], parts[longest][1] - compiling
        return rest
