"""A rate over the last few executions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class RateWindow:
    """Steps per second over the last `size` executions, and the sums over all of them.

    Args:
        size: Number of executions in the window.

    Attributes:
        steps: Steps added so far.
        seconds: Seconds added so far.
    """

    def __init__(self, size: int) -> None:
        self.steps = 0
        self.seconds = 0.0
        # Running totals, one more than executions: a rate is a difference of two, with nothing to sum up.
        self._marks: deque[tuple[int, float]] = deque([(0, 0.0)], maxlen=size + 1)

    def add(self, executions: Iterable[tuple[int, float]]) -> None:
        """Add executions, each with its steps and the seconds that it took."""
        for steps, seconds in executions:
            self.steps += steps
            self.seconds += seconds
            self._marks.append((self.steps, self.seconds))

    def rate(self) -> float | None:
        """Return steps per second over the window, or `None` before any time has passed in it."""
        first_steps, first_seconds = self._marks[0]
        seconds = self.seconds - first_seconds
        return (self.steps - first_steps) / seconds if seconds > 0 else None
