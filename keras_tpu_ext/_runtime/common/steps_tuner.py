"""Tune the number of steps in an execution: enough that its fixed cost vanishes, few enough to stay responsive."""

from __future__ import annotations

import math

# Seconds; the TensorFlow team's target for an automatic value (tensorflow#41742).
SHORTEST, LONGEST = 0.2, 1.0
_TARGET = 0.5
_MAX_GROWTH = 8


class StepsTuner:
    """Finds the number of steps, a power of two, in an execution that takes 0.2 to 1 second.

    It grows at most 8 times at once, and has settled once two executions in a row took that long, or longer with a
    single step, or were a whole epoch.
    """

    most_steps = 2**20  # upper limit of `steps`; it settles there too

    def __init__(self) -> None:
        self.steps = 1  # number of steps in the next execution
        self.settled = False  # true once `steps` is final
        self._fitted = False
        self._cut = False  # whether the last execution ended with its epoch

    def note(self, steps: int, seconds: float) -> None:
        """Record the seconds until the results of an execution were available.

        One with fewer steps than asked for ends its epoch, and is ignored; two such in a row are whole epochs.
        """
        if self.settled:
            return
        was_cut, self._cut = self._cut, steps != self.steps
        if self._cut:
            self.settled = was_cut
            return
        fits = SHORTEST <= seconds <= LONGEST
        fits |= (steps == 1 and seconds > LONGEST) or (steps >= self.most_steps and seconds < SHORTEST)
        self.settled = fits and self._fitted
        self._fitted = fits
        if not fits:
            self.steps = min(steps_that_fit(seconds / steps, self.most_steps), self.steps * _MAX_GROWTH)


def steps_that_fit(step_seconds: float | None, most_steps: int) -> int:
    """Return how many steps, a power of two, take up to half a second; 8 if it is unknown how long one takes."""
    fit = _MAX_GROWTH if step_seconds is None else max(1.0, _TARGET / max(step_seconds, 1e-9))
    return min(2 ** math.floor(math.log2(fit)), most_steps)
