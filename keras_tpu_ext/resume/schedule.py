"""When a training saves, and when it stops early."""

from __future__ import annotations

import time
from collections.abc import Callable

from keras_tpu_ext.resume.leaving import Interruption, seconds_of_process

# An epoch is saved at its end if it lasted this many times the seconds of a save.
_LEAST = 20
# The first save comes at the latest after this part (1 / n) of the time until the deadline.
_EARLY = 20
# The duration of a step is sent in ticks, so many per second; it is always below the second number.
_TICKS, _LONGEST_STEP = 10**5, 10**8


class Schedule:
    """When one `fit` saves, and when it stops early.

    Args:
        every_s: Seconds between saves.
        deadline_s: Seconds from the start of the process at which it ends; `None` if it does not.
        margin: It stops before the deadline by this many times the seconds of a save and a step.
    """

    def __init__(self, *, every_s: float, deadline_s: float | None, margin: float) -> None:
        self._every_s = every_s
        self._deadline_s = deadline_s
        self._margin = margin
        self.interruption = Interruption()  # the signal that has asked it to stop
        self._stood_still = 0.0  # seconds that training paused for the last save
        self._last_save = self._step_began = self._validation_began = time.monotonic()
        self._seconds_of_step = self._seconds_of_validation = 0.0
        self._is_last = False
        self._executions_until_agreement = 0

    def begin_epoch(self) -> None:
        """Note that an epoch begins."""
        self._is_last = False

    def begin_step(self, *, is_first: bool, is_last: bool) -> None:
        """Note that an execution is about to begin, the last one of its epoch or not.

        The duration of a step is measured from one such call to the next.
        """
        now = time.monotonic()
        self._is_last = is_last
        if not is_first:
            self._seconds_of_step = now - self._step_began
        self._step_began = now

    def begin_validation(self) -> None:
        """Note that Keras begins to validate."""
        self._validation_began = time.monotonic()

    def end_validation(self) -> None:
        """Note that validation has ended."""
        self._seconds_of_validation = time.monotonic() - self._validation_began

    def begin_save(self) -> None:
        """Note that a save begins."""
        self._last_save = time.monotonic()

    def end_save(self) -> None:
        """Note that training continues, while the checkpoint is written."""
        self._stood_still = time.monotonic() - self._last_save

    def leaves(self, writing: float) -> str:
        """Return why it is time to stop, or an empty text, given the seconds that writing a checkpoint takes."""
        if self.interruption.reason:
            return f"as {self.interruption.reason} asked it to"
        if self._deadline_s is None:
            return ""
        left = self._deadline_s - seconds_of_process()
        # After the last step of an epoch nothing is saved until Keras has validated.
        validation = self._seconds_of_validation if self._is_last else 0.0
        needed = self._margin * (self._stood_still + writing + self._seconds_of_step + validation)
        return f"{left:.0f} s before the session ends" if left < needed else ""

    def is_due(self, writing: float, *, is_epoch: bool) -> bool:
        """Return whether it is time to save; at the start of an epoch it may be earlier."""
        since, of_save = time.monotonic() - self._last_save, self._stood_still + writing
        # An epoch of seconds is not worth a save. With a deadline, a first save comes early, to be timed.
        wanted = self._every_s
        if self._deadline_s is not None and not of_save:
            wanted = min(wanted, self._deadline_s / _EARLY)
        return since >= wanted or (is_epoch and since >= _LEAST * of_save)

    def agree(self, gather: Callable[[int], list[int]], *, leaves: bool, is_due: bool) -> tuple[bool, bool]:
        """Return whether to stop and whether to save, if one of several processes wants to.

        All do so before the same step. They exchange their wishes about once a second.
        """
        self._executions_until_agreement -= 1
        if self._executions_until_agreement > 0:
            return False, False
        wish = 2 if leaves else int(is_due)
        length = min(int(self._seconds_of_step * _TICKS), _LONGEST_STEP - 1)
        answers = [divmod(one, _LONGEST_STEP) for one in gather(wish * _LONGEST_STEP + length)]
        wish = max(one for one, _ in answers)
        in_a_second = _TICKS // max(length or _TICKS for _, length in answers)
        self._executions_until_agreement = 0 if wish == 2 else in_a_second  # what could not be done now is done soon
        return wish == 2, wish > 0
