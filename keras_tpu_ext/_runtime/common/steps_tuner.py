"""How many steps one execution should have: enough that its fixed cost vanishes, few enough to stay responsive."""

from __future__ import annotations

import math

# Seconds; the TensorFlow team's aim for an automatic value (tensorflow#41742).
SHORTEST, LONGEST = 0.2, 1.0
_AIM = 0.5
_GROWTH = 8  # the most by which one execution may be longer than the one it was judged by


class StepsTuner:
    """Finds the number of steps in an execution that takes 0.2 to 1 second.

    It starts at one step and goes up by at most 8 times at once, in powers of two. It has settled once two
    executions in a row took a time within the aim, or longer with a single step.

    Attributes:
        steps: Number of steps in the next execution.
        settled: Whether `steps` is final.
        most_steps: The most that an execution may have; it has settled there too.
    """

    most_steps = 2**20

    def __init__(self) -> None:
        self.steps = 1
        self.settled = False
        self._fitted = False

    def note(self, steps: int, seconds: float) -> None:
        """Learn from an execution.

        Args:
            steps: Number of steps that it had. The last execution of an epoch may have fewer than `self.steps`
                and teaches nothing: longer executions would not help such an epoch.
            seconds: How long it took until its results were there.
        """
        if self.settled or steps != self.steps:
            return
        fits = SHORTEST <= seconds <= LONGEST
        fits |= (steps == 1 and seconds > LONGEST) or (steps >= self.most_steps and seconds < SHORTEST)
        self.settled = fits and self._fitted
        self._fitted = fits
        if not fits:
            in_aim = max(1.0, _AIM * steps / max(seconds, 1e-9))
            self.steps = min(2 ** math.floor(math.log2(in_aim)), self.steps * _GROWTH, self.most_steps)
