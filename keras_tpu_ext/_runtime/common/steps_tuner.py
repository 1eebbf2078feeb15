"""Tune the number of steps in an execution: enough that its fixed cost vanishes, few enough to stay responsive."""

from __future__ import annotations

import math

# Seconds; the TensorFlow team's target for an automatic value (tensorflow#41742).
SHORTEST, LONGEST = 0.2, 1.0
_TARGET = 0.5
_MAX_GROWTH = 8


class StepsTuner:
    """Finds the number of steps in an execution that takes 0.2 to 1 second.

    It starts at one step and grows by powers of two, at most 8 times at once. It has settled once two executions in a
    row took 0.2 to 1 second, or longer with a single step, or had all steps of an epoch.
    """

    most_steps = 2**20  # upper limit of `steps`; it settles there too

    def __init__(self) -> None:
        self.steps = 1  # number of steps in the next execution
        self.settled = False  # true once `steps` is final
        self._fitted = False
        self._cut = False  # whether the last execution ended with its epoch

    def note(self, steps: int, seconds: float) -> None:
        """Record the time of an execution.

        Args:
            steps: Number of its steps. The last execution of an epoch may have fewer than `self.steps` and is
                ignored; two such in a row are whole epochs, for which a longer execution would not help.
            seconds: Time until its results were available.
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
            target = max(1.0, _TARGET * steps / max(seconds, 1e-9))
            self.steps = min(2 ** math.floor(math.log2(target)), self.steps * _MAX_GROWTH, self.most_steps)
