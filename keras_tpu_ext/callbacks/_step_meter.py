"""How long a step takes, from begin to begin of executions that nothing else came between."""

from __future__ import annotations

from collections import deque

_ENOUGH = 10  # executions from which on the longest is left out


class StepMeter:
    """Averages the seconds of a step.

    The longest execution is left out of an average over enough of them: a single pause is the process's, and better
    input does not cure it. (tf.data now and then waits at the end of a pipeline for its tuner's next turn, up to some
    seconds; others share the machine.) What comes again and again counts.

    Args:
        window: Number of executions in the rolling average.

    Attributes:
        executions: How many executions the epoch has begun, those of a `pause` included.
        noted: Times of begins that are not worked off yet; the list stays the same.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self.noted: list[float] = []
        self._recent: deque[tuple[float, int]] = deque(maxlen=window)
        self.start_epoch()

    def start_epoch(self) -> None:
        """Start the sums of an epoch; what is between two epochs is no step."""
        self._epoch: list[float] = [0.0, 0]
        self._counted = 0
        self._longest = (0.0, 1)
        self._last: tuple[float, int] | None = None
        self.executions = 0
        self.noted.clear()

    def begin(self, now: float, steps: int) -> None:
        """Note that an execution of `steps` steps begins."""
        self.executions += 1
        # The first two of an epoch meet empty buffers, or are compiled.
        if self._last is not None and self.executions > 3:
            seconds, of = now - self._last[0], self._last[1]
            self._recent.append((seconds, of))
            self._counted += 1
            self._epoch[0] += seconds
            self._epoch[1] += of
            if seconds * self._longest[1] > self._longest[0] * of:
                self._longest = seconds, of
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
        if not self._recent:
            return None
        seconds, steps = map(sum, zip(*self._recent, strict=True))
        return _seconds(seconds, steps, len(self._recent), max(self._recent, key=lambda one: one[0] / one[1]))

    def of_epoch(self) -> float | None:
        """Return the seconds of a step over the epoch; `None` where nothing was timed."""
        seconds, steps = self._epoch
        return _seconds(seconds, steps, self._counted, self._longest) if self._counted else None


def _seconds(seconds: float, steps: float, executions: int, longest: tuple[float, int]) -> float:
    if executions < _ENOUGH:
        return seconds / steps
    return (seconds - longest[0]) / (steps - longest[1])
