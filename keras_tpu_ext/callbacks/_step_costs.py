"""What the steps of a `fit` take, from the begin of one execution to that of the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

Rows = np.ndarray[Any, np.dtype[np.float64]]  # of cycles, each with the numbers of a `Cycle`
Noted = tuple[float, ...]  # the measurements of a cycle that has not been divided yet


class Cycle(NamedTuple):
    """Seconds from the begin of an execution to that of the next, by what they were spent on."""

    steps: int  # number of batches of the execution
    training: float
    input: float
    callbacks: float
    idle: float
    compile: float

    @property
    def total(self) -> float:
        """All seconds."""
        return sum(self[1:])


class StepCosts:
    """Seconds of a step, on average over executions.

    Of enough executions the longest is left out: a single pause comes from the process, such as tf.data's tuner or
    another program. Pauses that recur do count.
    """

    _ENOUGH = 10

    def __init__(self, cycles: ArrayLike = ()) -> None:
        self.executions = 0
        self._sums = self._longest = np.zeros(len(Cycle._fields))
        self._longest_step, self._leaves_out = 0.0, True
        self.add(np.reshape(np.asarray(cycles, float), (-1, len(Cycle._fields))))

    @property
    def sums(self) -> Cycle:
        """All seconds of all executions."""
        return Cycle(*self._sums.tolist())

    def add(self, cycles: Rows, *, waits_for_all: bool = False) -> None:
        """Add executions; with `waits_for_all` they have the time of others, and none is left out."""
        if not len(cycles):
            return
        self.executions += len(cycles)
        self._sums = self._sums + cycles.sum(axis=0)
        self._leaves_out = self._leaves_out and not waits_for_all
        of_steps = cycles[:, 1:].sum(axis=1) / cycles[:, 0]
        longest = of_steps.argmax()
        if of_steps[longest] > self._longest_step:
            self._longest_step, self._longest = of_steps[longest], cycles[longest].copy()

    def per_step(self, compute_seconds: float | None = None) -> Cycle | None:
        """Return the seconds of a step, or `None` if there are none.

        `compute_seconds` are those of a step whose batch is ready, if steps read their batches in their graph.
        """
        leaves_out = self.executions >= self._ENOUGH and self._leaves_out
        steps, *seconds = (self._sums - self._longest if leaves_out else self._sums).tolist()
        if not steps:
            return None
        each = Cycle(1, *(one / steps for one in seconds))
        if compute_seconds is None:
            return each
        waiting = max(each.training - compute_seconds, 0.0)
        return each._replace(training=each.training - waiting, input=each.input + waiting)


class StepClock:
    """Notes the time of steps: calls, reading batches, hooks of callbacks, and compiling.

    After a step the processor's caches hold other things, so that Python takes several times as long as in a loop of
    its own: between steps a cycle is only noted, and `divided` is for many of them at once.

    Args:
        clock: Returns the time in seconds.
        compiled: Returns the seconds spent on compiling so far.
        hooks: Seconds of each callback's hooks since the last cycle; they are set to 0 when it ends.
    """

    def __init__(self, clock: Callable[[], float], compiled: Callable[[], float], hooks: list[float]) -> None:
        self._clock, self._compiled, self._hooks = clock, compiled, hooks
        self._zeros = (0.0,) * len(hooks)
        self._of_step = 0.0  # seconds for which the devices compute a step
        self._ahead = 0.0  # seconds for which they still compute steps before that of the call
        self._tail: float | None = None  # seconds for which they compute after the call, if it was waited for
        # When the last call began, in which devices get their work, and when the last cycle ended.
        self.called = self.ended = 0.0
        self._returned = self._compiled_before = 0.0
        self._read_before = self._read_inside = 0.0

    def drop(self) -> list[float]:
        """Return the seconds of hooks until now, and count neither these nor batches that were read."""
        hooks = list(self._hooks)
        self._hooks[:] = self._zeros
        self._read_before = self._ahead = 0.0
        return hooks

    def begin_call(self, *, ends_cycle: bool = False) -> None:
        """Note that a call begins, right where a cycle has ended or else now."""
        if not ends_cycle:
            self.ended, self._compiled_before = self._clock(), self._compiled()
        self.called = self._returned = self.ended

    def end_call(self) -> None:
        """Note that it has returned."""
        self._returned = self._clock()

    def end_computing(self, steps: int = 0) -> None:
        """Note that the devices are known to be done; with `steps`, that they had nothing to do but these before."""
        self._tail = self._clock() - self._returned
        if steps:
            compiled = self._compiled() - self._compiled_before
            self._of_step = max(self._returned - self.called - self._read_inside - compiled + self._tail, 0.0) / steps

    def read(self, seconds: float, *, inside: bool = False) -> None:
        """Note that batches have been read, inside of the call or after it."""
        if inside:
            self._read_inside += seconds
        else:
            self._read_before += seconds

    def end_cycle(self, steps: int, *, computing: bool) -> Noted:
        """End a cycle now, and return its measurements; `computing` says whether the devices still compute."""
        self.ended, compiled, before = self._clock(), self._compiled(), self._compiled_before
        in_call = self._returned - self.called
        waiting = min(self._read_inside + compiled - before, in_call)  # before the devices got the step
        at_return = max(self._ahead - waiting, 0.0) + self._of_step * steps - (in_call - waiting)
        tail, self._tail = max(at_return, 0.0) if self._tail is None else self._tail, None
        self._ahead = max(at_return - (self.ended - self._returned), 0.0) if computing else 0.0
        noted = (
            steps,
            computing,
            self.ended - self.called,
            in_call,
            compiled - before,
            self._read_before,
            self._read_inside,
            tail,
            *self._hooks,
        )
        self._compiled_before = compiled
        self._hooks[:] = self._zeros
        self._read_before = self._read_inside = 0.0
        return noted


def divided(noted: Sequence[Noted]) -> tuple[Rows, Rows]:
    """Return what cycles were spent on, and what part of it each callback's hooks took.

    While the devices compute it is training, whatever the host does: for as long as they are known to, and for all of
    a cycle if they still do at its end.
    """
    rows = np.array(noted, float)
    # All of a cycle, its call, compiling, reading batches after the call and within it, and computing after it.
    steps, computing, total, in_call, compiled, reading, inside, tail = rows[:, :8].T
    of_hooks = rows[:, 8:]
    in_call, inside = np.where(computing, total, in_call), np.where(computing, 0.0, inside)
    after = total - in_call
    reading = np.minimum(reading, after)
    idle = np.maximum(after - of_hooks.sum(axis=1) - reading, 0.0)
    training, in_hooks = np.maximum(in_call - inside, 0.0), np.minimum(of_hooks.sum(axis=1), after)
    compiling = np.minimum(compiled, total)
    # What compiles is the call, or else the data, a callback, or Keras.
    compiling -= _take(compiling, training, inside, in_hooks, idle)
    # The devices go on beside hooks, then beside the rest, then beside reading.
    training += tail - _take(tail, in_hooks, idle, reading)
    cycles = np.stack([steps, training, reading + inside, in_hooks, idle, compiling], axis=1)
    part = in_hooks / np.maximum(of_hooks.sum(axis=1), np.finfo(float).tiny)
    return cycles, of_hooks * part[:, None]


def _take(seconds: Rows, *parts: Rows) -> Rows:
    """Take seconds from the first of some parts, in place, then from the next; return those that none of them has."""
    for part in parts:
        taken = np.minimum(part, seconds)
        part -= taken
        seconds = seconds - taken
    return seconds
