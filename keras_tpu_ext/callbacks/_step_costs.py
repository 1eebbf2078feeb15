"""What the steps of a `fit` take, from the begin of one execution to that of the next."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import NamedTuple

from keras_tpu_ext.callbacks._buckets import COMPILE, IDLE, INPUT, TRAINING, Buckets


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

    def __init__(self, cycles: Collection[Cycle] = ()) -> None:
        self.executions = 0
        self.sums = self._longest = Cycle(0, 0.0, 0.0, 0.0, 0.0, 0.0)
        self._leaves_out = True
        for cycle in cycles:
            self.add(cycle)

    def add(self, cycle: Cycle, *, waits_for_all: bool = False) -> None:
        """Add an execution; with `waits_for_all` it has the time of others, and none is left out."""
        self.executions += 1
        self.sums = Cycle(*map(operator.add, self.sums, cycle))
        self._leaves_out = self._leaves_out and not waits_for_all
        if cycle.total * self._longest.steps >= self._longest.total * cycle.steps:
            self._longest = cycle

    def per_step(self, compute_seconds: float | None = None) -> Cycle | None:
        """Return the seconds of a step, or `None` if there are none.

        `compute_seconds` are those of a step whose batch is ready, if steps read their batches in their graph.
        """
        sums = self.sums
        if self.executions >= self._ENOUGH and self._leaves_out:
            sums = Cycle(*map(operator.sub, sums, self._longest))
        if not sums.steps:
            return None
        each = Cycle(1, *(seconds / sums.steps for seconds in sums[1:]))
        if compute_seconds is None:
            return each
        waiting = max(each.training - compute_seconds, 0.0)
        return each._replace(training=each.training - waiting, input=each.input + waiting)


class NotedCycle(NamedTuple):
    """The measurements of a cycle, in seconds, that has not been divided yet."""

    steps: int
    computing: bool  # whether the devices still computed at its end
    total: float
    in_call: float
    compiled: float
    read_before: float  # reading batches after the call
    read_inside: float  # and within it
    tail: float  # the devices compute after the call
    hooks: tuple[float, ...]  # of each callback


class StepClock:
    """Divides the time of steps: calls, reading batches, hooks of callbacks, compiling, and the rest.

    While the devices compute it is training, whatever the host does: for as long as they are known to, and for all of
    a cycle if they still do at its end.

    After a step the processor's caches hold other things, so that Python takes several times as long as in a loop of
    its own: between steps a cycle is only noted, and `divide` is for many of them at once.

    Args:
        buckets: What is charged for a cycle.
        names: The bucket of each callback's hooks.
        hooks: Seconds of each callback's hooks since the last cycle; they are set to 0 when it ends.
    """

    def __init__(self, buckets: Buckets, names: list[str], hooks: list[float]) -> None:
        self._buckets, self._names, self._hooks = buckets, names, hooks
        self._clock, self._compiled = buckets.clock, buckets.compiled
        self.of_callbacks = [0.0] * len(hooks)
        self._zeros = tuple(self.of_callbacks)
        self.tail = 0.0  # seconds for which the devices compute after a call
        # When the last call began, in which devices get their work, and when the last cycle ended.
        self.called = self.ended = 0.0
        self._returned = self._compiled_before = 0.0
        self._read_before = self._read_inside = 0.0

    def drop(self) -> list[float]:
        """Return the seconds of hooks until now, and count neither these nor batches that were read."""
        hooks = list(self._hooks)
        self._hooks[:] = self._zeros
        self._read_before = 0.0
        return hooks

    def begin_call(self, *, ends_cycle: bool = False) -> None:
        """Note that a call begins, right where a cycle has ended or else now."""
        if not ends_cycle:
            self.ended, self._compiled_before = self._clock(), self._compiled()
        self.called = self._returned = self.ended

    def end_call(self) -> None:
        """Note that it has returned."""
        self._returned = self._clock()

    def read(self, seconds: float, *, inside: bool = False) -> None:
        """Note that batches have been read, inside of the call or after it."""
        if inside:
            self._read_inside += seconds
        else:
            self._read_before += seconds

    def end_cycle(self, steps: int, *, computing: bool) -> NotedCycle:
        """End a cycle now; `computing` says whether the devices still compute."""
        self.ended, compiled, before = self._clock(), self._compiled(), self._compiled_before
        noted = NotedCycle(
            steps,
            computing,
            self.ended - self.called,
            self._returned - self.called,
            compiled - before,
            self._read_before,
            self._read_inside,
            self.tail,
            tuple(self._hooks),
        )
        self._compiled_before = compiled
        self._hooks[:] = self._zeros
        self._read_before = self._read_inside = 0.0
        return noted

    def divide(self, noted: NotedCycle) -> Cycle:
        """Return what a cycle was spent on, and charge it."""
        in_hooks = sum(noted.hooks)
        if noted.computing:
            compiling = min(noted.compiled, noted.total)
            cycle = Cycle(noted.steps, noted.total - compiling, 0.0, 0.0, 0.0, compiling)
        else:
            cycle = _divided(noted, in_hooks)
        for bucket in (TRAINING, INPUT, IDLE, COMPILE):
            self._buckets.add(bucket, getattr(cycle, bucket))
        for i, seconds in enumerate(noted.hooks) if cycle.callbacks else ():
            part = cycle.callbacks / in_hooks * seconds
            self.of_callbacks[i] += part
            self._buckets.add(self._names[i], part)
        return cycle


def _divided(noted: NotedCycle, in_hooks: float) -> Cycle:
    """Return a cycle at whose end the devices wait."""
    steps, _, total, in_call, compiled, reading, inside, tail, _ = noted
    after = total - in_call
    reading = min(reading, after)
    idle = max(after - in_hooks - reading, 0.0)
    training, in_hooks, compiling = max(in_call - inside, 0.0), min(in_hooks, after), 0.0
    if compiled:
        # What compiles is the call, or else the data, a callback, or Keras.
        compiling = rest = min(compiled, total)
        training, rest = max(training - rest, 0.0), max(rest - training, 0.0)
        inside, rest = max(inside - rest, 0.0), max(rest - inside, 0.0)
        in_hooks, rest = max(in_hooks - rest, 0.0), max(rest - in_hooks, 0.0)
        idle, rest = max(idle - rest, 0.0), max(rest - idle, 0.0)
        compiling -= rest
    if tail:
        # The devices go on beside hooks, then beside the rest, then beside reading.
        covered = min(tail, in_hooks + idle + reading)
        training += covered
        in_hooks, covered = max(in_hooks - covered, 0.0), max(covered - in_hooks, 0.0)
        idle, covered = max(idle - covered, 0.0), max(covered - idle, 0.0)
        reading = max(reading - covered, 0.0)
    return Cycle(steps, training, reading + inside, in_hooks, idle, compiling)
