"""Executions of a `fit` on batches that are ready: what a step takes without waiting, and the pipeline on its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from keras_tpu_ext._runtime.common.executions import BatchesAhead, Execution, Stage
from keras_tpu_ext._runtime.common.types import Nest

_MAX_BYTES_AHEAD = 2**28  # of batches taken ahead, which are in memory all at once
_BUFFERED = 0.1  # of a step: a batch that came faster was in a buffer
_WARMUP = 2  # executions, of which the first one compiles
_MIN_STEPS = 3  # timed in a probe, in whole executions
_MAX_TIMED = 32  # executions timed in a probe
_PROBE_SECONDS = 0.1  # for which a probe times executions, up to _MAX_PART
_MAX_PART = 0.01  # of an epoch's executions
_MAX_COST = 0.005  # of the time since the last probe: a costlier one waits for a later epoch


class ProbedInput(NamedTuple):
    """The measurements of one probe."""

    compute_seconds: float  # seconds for one batch that is ready
    # Seconds that the pipeline takes for one batch while nothing waits for the step; `None` if the batches came out
    # of a buffer, so that it is only known to be faster than the step.
    pipeline_seconds: float | None
    # Seconds by which it made `fit` longer: the time that the devices were idle, less the waiting that this saved.
    cost_seconds: float
    stages: tuple[Stage, ...]  # the cost of the pipeline's stages, if known


class InputProbe:
    """Takes the batches of some executions ahead of their turn, and times these executions.

    Args:
        count: Number of executions to time.
        clock: Returns the time in seconds.
        waited: Seconds that a step has waited for its batch so far, which the probe saves.
    """

    def __init__(self, count: int, clock: Callable[[], float], waited: float) -> None:
        self._count, self._clock, self._waited = count, clock, waited
        self.read_seconds = 0.0  # of the last `run`, that went into getting batches
        self.result: ProbedInput | None = None  # `None` before the end, or if it could not be measured
        self.done = False  # whether the probe is over
        self.refused = False  # whether batches cannot be taken from this pipeline ahead of time
        self._ahead: BatchesAhead | None = None
        self._stages: tuple[Stage, ...] = ()
        self._cost = self._seconds = 0.0  # of taking the batches, and of the executions that are timed
        self._ran = 0  # executions

    def run(self, execution: Execution) -> Nest:
        """Run an execution; call this for each one until the probe is `done`."""
        self.read_seconds = 0.0
        try:
            if self._ahead is None:
                self._take_ahead(execution)
            if self._ahead is not None:
                return self._run_on(execution, self._ahead)
            result = execution.run()  # raises if the data has ended
            self.refused = self.done = True
            return result
        except BaseException:  # including TensorFlow's signal that the data has ended
            self.done = True
            raise

    def close(self) -> None:
        """Let go of the pipeline: an iterator that nobody frees can keep TensorFlow from ending the process."""
        self._ahead = None

    def may_go_on_with(self, execution: Execution) -> bool:
        """Return whether the batches taken ahead are those of this execution."""
        return self._ahead is None or execution.goes_on_after(self._ahead)

    def _take_ahead(self, execution: Execution) -> None:
        begin, self._stages = self._clock(), tuple(execution.stages())
        self._ahead = execution.take_ahead(self._count + 1, _MAX_BYTES_AHEAD, self._clock)
        self._cost = self.read_seconds = self._clock() - begin

    def _run_on(self, execution: Execution, ahead: BatchesAhead) -> Nest:
        """Run an execution on its batches; the first one is not timed, and one after the last raises their error."""
        begin = self._clock()
        result = execution.run_on(ahead)
        self._ran += 1
        if self._ran in (1, ahead.executions):
            execution.wait_for(result)
        if self._ran > 1:
            self._seconds += self._clock() - begin
        timed = ahead.batches - ahead.steps_of_first
        if self._ran == ahead.executions and timed > 0:
            compute = self._seconds / timed
            cost = max(self._cost - self._waited * ahead.batches, 0.0)
            self.result = ProbedInput(compute, _pipeline_seconds(ahead, compute), cost, self._stages)
        self.done = self._ran >= ahead.executions + (ahead.error is not None)
        return result


class ProbeSchedule:
    """When a `fit` probes its input: once an epoch, or once at all if its epochs are short.

    Args:
        clock: Returns the time in seconds.
        steps: Number of batches in an epoch, or `None` if it is not known.
    """

    def __init__(self, clock: Callable[[], float], steps: int | None) -> None:
        self._clock, self._steps = clock, steps
        self.found: list[ProbedInput] = []
        self.refused = False  # whether batches cannot be taken ahead
        self.was_growing = False  # whether `steps_per_execution="auto"` was looking for its number
        self.needed = 0  # executions that an epoch must have
        self._probed_at = 0.0
        self._of_last_epoch = self._batch = self._executions = 0
        self.begin_epoch()

    def begin_epoch(self, executions: int = 0) -> None:
        """Note the begin of an epoch, and the number of executions of the one before it."""
        cost = self.found[-1].cost_seconds if self.found else 0.0
        self._of_last_epoch, self._batch, self._executions = executions, 0, 0
        has_enough = bool(self.found) and self._of_last_epoch * _MAX_PART < _MIN_STEPS
        is_cheap = cost <= _MAX_COST * (self._clock() - self._probed_at)
        self.may_begin = is_cheap and not self.refused and not has_enough

    def next(self, execution: Execution, step_seconds: float, waited: float) -> InputProbe | None:
        """Return the probe that begins with this execution, if one does.

        Args:
            execution: The execution.
            step_seconds: Seconds of a step so far.
            waited: Seconds of these for which it waited for its batch.
        """
        batch, executions = self._batch, self._executions
        steps = execution.steps
        self._batch, self._executions = batch + steps, executions + 1
        self.was_growing = not execution.is_settled()
        count = self._count(steps, step_seconds)
        self.needed = _WARMUP + count + 1
        remaining = None if self._steps is None else (self._steps - batch) // steps
        if self.was_growing or executions < _WARMUP or (remaining is not None and remaining <= count):
            return None
        self.may_begin = False
        return InputProbe(count, self._clock, waited)

    def end(self, probe: InputProbe) -> None:
        """Note the end of a probe."""
        self.refused |= probe.refused
        self.may_begin = self.may_begin and not self.refused
        if probe.result is not None:
            self.found.append(probe.result)
            self._probed_at = self._clock()

    def _count(self, steps: int, step_seconds: float) -> int:
        """Return the number of executions of so many steps that a probe times."""
        of_epoch = self._steps // steps if self._steps else self._of_last_epoch
        wanted = math.ceil(_PROBE_SECONDS / (step_seconds * steps)) if step_seconds else _MAX_TIMED
        return max(math.ceil(_MIN_STEPS / steps), min(wanted, _MAX_TIMED, int(of_epoch * _MAX_PART)))


def _pipeline_seconds(ahead: BatchesAhead, compute_seconds: float) -> float | None:
    """Return the seconds for one batch that did not come out of a buffer; `None` if all did."""
    # The one after those of a buffer was begun before: it comes too early. So the mean is over the second half, and
    # over less if the buffer lasted longer.
    count = len(ahead.seconds)
    each = [seconds / steps for seconds, steps in zip(ahead.seconds, ahead.steps, strict=True)]
    made = next((i for i, seconds in enumerate(each) if seconds > _BUFFERED * compute_seconds), None)
    if made is None:
        return None
    first = max(count // 2, min(made + 1, count - 1)) if made else count // 2
    seconds = sum(ahead.seconds[first:]) / sum(ahead.steps[first:])
    return seconds if seconds > _BUFFERED * compute_seconds else None
