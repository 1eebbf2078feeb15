"""The executions of one epoch, timed by the batch hooks, and its examples, counted by few readings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple


class Execution(NamedTuple):
    """One call of the train function."""

    batch: int  # index in the epoch of its first batch
    steps: int  # number of batches it ran
    seconds: float  # seconds from its start to the next one's, or to its own end for the last of an epoch
    ended: float  # clock time at which those seconds were over


class EpochExecutions:
    """Times the executions of one epoch from `on_train_batch_begin` and `on_train_batch_end`.

    Two facts about Keras determine the rules. The batch index jumps by `steps_per_execution`, and the end hook names
    the last batch of a full execution even when data ran out before it (before Keras 3.11 its first batch: see
    `complete_last`). And if the length of the data is unknown, the epoch ends with a begin hook that gets no end
    hook: that one is not an execution. So an execution is returned only when two later ones have begun, and `finish`
    returns the rest, the last of them timed by its own end.
    """

    def __init__(self) -> None:
        self.started: float | None = None  # clock time of the first begin, or `None`
        self.ended: float | None = None  # clock time of the last end, or `None`
        self.last_batch = -1  # index of the last batch that an end hook named, or -1
        self._begins: list[tuple[int, float]] = []

    @property
    def last_begin(self) -> int:
        """Index of the first batch of the last execution that has ended, or -1."""
        return max((batch for batch, _ in self._begins if batch <= self.last_batch), default=-1)

    def begin(self, begins: Sequence[tuple[int, float]]) -> list[Execution]:
        """Add begins of executions, each as its first batch and its time; return the executions now complete."""
        if self.started is None and begins:
            self.started = begins[0][1]
        known = [*self._begins, *begins]
        self._begins = known[-2:]
        return [_between(*pair) for pair in itertools.pairwise(known[:-1])]

    def end(self, batch: int, now: float) -> None:
        """Add the end of the execution whose last batch is `batch`."""
        if batch > self.last_batch:  # on JAX the hooks may arrive out of order
            self.last_batch, self.ended = batch, now

    def complete_last(self, steps: int) -> None:
        """Assume that the last execution had `steps` batches, because the end hook named its first batch."""
        if self.last_batch >= 0:
            later = [batch for batch, _ in self._begins if batch > self.last_batch]
            self.last_batch = min([self.last_batch + steps, *later]) - 1

    def finish(self) -> list[Execution]:
        """Return the executions not returned yet, oldest first; the last is the last of the epoch."""
        begins = [begin for begin in self._begins if begin[0] <= self.last_batch]
        if not begins or self.ended is None:
            return []
        batch, begun = begins[-1]
        last = Execution(batch, self.last_batch + 1 - batch, self.ended - begun, self.ended)
        return [_between(*pair) for pair in itertools.pairwise(begins)] + [last]


def _between(first: tuple[int, float], second: tuple[int, float]) -> Execution:
    return Execution(first[0], second[0] - first[0], second[1] - first[1], second[1])


class ExampleCounter:
    """Counts examples: an estimate per step while an epoch runs, the exact number at its end.

    Args:
        batch_size: Examples per step over all replicas as the user gave it, or `None` to use the readings.
        untrusted_per_step: Count per step up to which it may not be a count of examples: the number of replicas if a
            custom `train_step` may not weight the loss tracker by the batch size, so that it adds one per step and
            replica. Defaults to 0.
    """

    def __init__(self, batch_size: int | None, untrusted_per_step: int = 0) -> None:
        self.per_step: float | None = batch_size  # examples per step, or `None` while they are not known
        # Examples in an epoch and its steps, if `batch_size` does not fit them; else `None`.
        self.mismatch: tuple[float, int] | None = None
        self._batch_size = batch_size
        self._untrusted_per_step = untrusted_per_step
        self.start_epoch()

    def start_epoch(self) -> None:
        """Reset to 0, as Keras's own counter does."""
        self._steps = 0
        self._examples = 0.0
        self._was_reset = False
        self._sizes: list[float] = []  # examples per step, as the readings of this epoch show them

    @property
    def needs_readings(self) -> bool:
        """Whether examples per step have to be read from the model."""
        return self._batch_size is None

    def read(self, steps: int, examples: float | None) -> None:
        """Take a reading: `examples` after `steps` whole steps of this epoch."""
        if steps <= self._steps or examples is None:
            return
        if examples <= steps * self._untrusted_per_step:
            self.per_step = None
        elif examples < self._examples:
            self._was_reset = True  # something evaluated the model in the middle of the epoch
        elif not self._was_reset:
            self.per_step = (examples - self._examples) / (steps - self._steps)
            self._sizes.append(self.per_step)
            self._steps, self._examples = steps, examples

    def estimate(self, steps: int) -> float | None:
        """Return the examples in the first `steps` steps of this epoch by the last readings, if these suffice."""
        if self.per_step is None or self._was_reset:
            return None
        return self._examples + self.per_step * (steps - self._steps)

    def total(self, steps: int, examples: float | None) -> float | None:
        """Return the examples in the epoch's `steps` steps, after which the model's count was `examples`.

        If there is no such count, as in an epoch longer than its data type can hold, it is the estimate.
        """
        counted = examples if examples is not None and examples > steps * self._untrusted_per_step else None
        if self._batch_size is not None:
            return self._total_of_given(self._batch_size, steps, counted)
        if examples is None:
            return self.estimate(steps)
        self._was_reset = self._was_reset or (counted is not None and counted < self._least(steps))
        if counted is None or self._was_reset:
            return None
        if self.per_step is None and steps:
            self.per_step = counted / steps
        return counted

    def _least(self, steps: int) -> float:
        """Return the fewest examples of `steps` steps; a lower count was reset since the last reading.

        If readings have repeatedly shown one size, only the last batch may be smaller.
        """
        if len(self._sizes) < 2 or min(self._sizes) < max(self._sizes):
            return self._examples
        return self._examples + self._sizes[-1] * max(steps - 1 - self._steps, 0)

    def _total_of_given(self, batch_size: int, steps: int, counted: float | None) -> float:
        if counted is None or not steps:
            return float(batch_size * steps)
        if batch_size * (steps - 1) < counted <= batch_size * steps:
            return counted
        self.mismatch = (counted, steps)
        return float(batch_size * steps)
