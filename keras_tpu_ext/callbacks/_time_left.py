"""How long a `fit` still takes."""

from __future__ import annotations


class TimeLeft:
    """Estimates the seconds that a `fit` still takes, from the steps of this epoch and what came between epochs.

    Args:
        epochs: Number of epochs of `fit`.
        steps: Number of steps of an epoch, or `None` if it is not known yet.
        other: Seconds of an epoch beside its steps, such as validation, as planned; or `None`.
    """

    def __init__(self, epochs: int, steps: int | None, other: float | None = None) -> None:
        self.epochs, self.steps = epochs, steps
        self.other = other  # as measured from the end of the first epoch on
        self._is_first = True  # epoch
        self._epoch = self._done = 0
        self._rate: float | None = None  # seconds of a step
        self._began: float | None = None
        self._first: tuple[float, int] | None = None  # when, and after how many steps
        self._ended: float | None = None

    def begin_epoch(self, epoch: int, now: float) -> None:
        """Note that an epoch begins."""
        if self._ended is not None and self._began is not None and self._first is not None:
            # In the first epoch the first step compiles; later it is the begin of an epoch that takes time.
            start = 0.0 if self._is_first else self._first[0] - self._began - (self._rate or 0.0)
            self.other, self._is_first = max(start, 0.0) + now - self._ended, False
        self._epoch, self._began, self._done = epoch, now, 0
        self._first = self._ended = None

    def after_steps(self, now: float, steps: int) -> None:
        """Note the steps of this epoch."""
        self._done = steps
        if self._first is None:
            self._first = now, steps
        elif steps > self._first[1]:
            self._rate = (now - self._first[0]) / (steps - self._first[1])

    def end_steps(self, now: float, steps: int) -> None:
        """Note that all steps of this epoch are done, and validation is next."""
        if self._ended is None:
            self.after_steps(now, steps)
            self._ended, self.steps = now, self.steps or steps

    def seconds(self, now: float) -> float | None:
        """Return the seconds that are left, at least if `other` is not known; `None` if nothing is known yet."""
        if self._rate is None or self.steps is None:
            return None
        other = self.other or 0.0
        further = (self.epochs - self._epoch - 1) * (self.steps * self._rate + other)
        spent = 0.0 if self._ended is None else now - self._ended
        return further + max(self.steps - self._done, 0) * self._rate + max(other - spent, 0.0)
