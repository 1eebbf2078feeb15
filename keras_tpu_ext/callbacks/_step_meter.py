"""How long a step takes, from begin to begin of executions that nothing else came between."""

from __future__ import annotations

from collections import deque


class StepMeter:
    """Averages the seconds of a step.

    Args:
        window: Number of executions in the rolling average.

    Attributes:
        executions: How many executions the epoch has begun, those of a `pause` included.
        noted: Times of begins that are not worked off yet; the list stays the same.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self.noted: list[float] = []
        self._recent: deque[tuple[float, int]] = deque()
        self._sum: list[float] = [0.0, 0]  # of the window; kept, because it is asked for at every batch
        self.start_epoch()

    def start_epoch(self) -> None:
        """Start the sums of an epoch; what is between two epochs is no step."""
        self._epoch: list[float] = [0.0, 0]
        self._last: tuple[float, int] | None = None
        self.executions = 0
        self.noted.clear()

    def begin(self, now: float, steps: int) -> None:
        """Note that an execution of `steps` steps begins."""
        self.executions += 1
        # The first two of an epoch meet empty buffers, or are compiled.
        if self._last is not None and self.executions > 3:
            seconds, of = now - self._last[0], self._last[1]
            self._remember(seconds, of)
            self._epoch[0] += seconds
            self._epoch[1] += of
        self._last = (now, steps)

    def work_off(self, steps: int) -> None:
        """Work off what was noted, executions of `steps` steps each."""
        for now in self.noted:
            self.begin(now, steps)
        self.noted.clear()

    def pause(self) -> None:
        """Note an execution whose time is not to be counted, nor that since the last begin."""
        self.executions += 1
        self._last = None

    def recent(self) -> float | None:
        """Return the seconds of a step over the window; `None` where it is empty."""
        return self._sum[0] / self._sum[1] if self._sum[1] else None

    def of_epoch(self) -> float | None:
        """Return the seconds of a step over the epoch; `None` where nothing was timed."""
        return self._epoch[0] / self._epoch[1] if self._epoch[1] else None

    def _remember(self, seconds: float, of: int) -> None:
        self._recent.append((seconds, of))
        self._sum[0] += seconds
        self._sum[1] += of
        if len(self._recent) > self._window:
            seconds, of = self._recent.popleft()
            self._sum[0] -= seconds
            self._sum[1] -= of
