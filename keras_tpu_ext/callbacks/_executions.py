"""From the batch hooks of one epoch to the executions behind them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple


class Execution(NamedTuple):
    """One call of the train function.

    Attributes:
        batch: Index in the epoch of its first batch.
        steps: Number of batches it ran.
        seconds: Seconds from its begin to the next one's, or to its own end for the last of an epoch.
        ended: Clock time at which those seconds were over.
    """

    batch: int
    steps: int
    seconds: float
    ended: float


class EpochExecutions:
    """Times the executions of one epoch from `on_train_batch_begin` and `on_train_batch_end`.

    Two facts of Keras make the rules. The batch index jumps by `steps_per_execution`, and the end hook names
    the last batch of a full execution even when data ran out before it. And where the length of the data is
    not known, the epoch ends with a begin hook that gets no end hook: that one is no execution. So an
    execution is handed out only when two later ones have begun, and `finish` hands out the rest, the last of
    them timed by its own end.

    Attributes:
        started: Clock time of the first begin, or `None`.
        ended: Clock time of the last end, or `None`.
        last_batch: Index of the last batch that an end hook named, or -1.
    """

    def __init__(self) -> None:
        self.started: float | None = None
        self.ended: float | None = None
        self.last_batch = -1
        self._begins: list[tuple[int, float]] = []

    @property
    def last_begin(self) -> int:
        """Index of the first batch of the last execution that has ended, or -1."""
        return max((batch for batch, _ in self._begins if batch <= self.last_batch), default=-1)

    def begin(self, begins: Sequence[tuple[int, float]]) -> list[Execution]:
        """Note begins of executions, each with its first batch and its time; return those that are now complete."""
        if self.started is None and begins:
            self.started = begins[0][1]
        known = [*self._begins, *begins]
        self._begins = known[-2:]
        return [_between(*pair) for pair in itertools.pairwise(known[:-1])]

    def end(self, batch: int, now: float) -> None:
        """Note that the execution whose last batch is `batch` has ended."""
        if batch > self.last_batch:  # on JAX the hooks may arrive out of order
            self.last_batch, self.ended = batch, now

    def finish(self) -> list[Execution]:
        """Return the executions not handed out yet, oldest first; the last is the last of the epoch."""
        begins = [begin for begin in self._begins if begin[0] <= self.last_batch]
        if not begins or self.ended is None:
            return []
        batch, begun = begins[-1]
        last = Execution(batch, self.last_batch + 1 - batch, self.ended - begun, self.ended)
        return [_between(*pair) for pair in itertools.pairwise(begins)] + [last]


def _between(first: tuple[int, float], second: tuple[int, float]) -> Execution:
    return Execution(first[0], second[0] - first[0], second[1] - first[1], second[1])
