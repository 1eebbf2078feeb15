"""The time of a step in epochs too short for a probe: of one as it comes, then of one whose batches are there."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from keras_tpu_ext._runtime.common.executions import Execution, Stage
from keras_tpu_ext.callbacks._input_probe import (
    MAX_BYTES_AHEAD,
    Probe,
    ProbedInput,
    call_execution,
)


class EpochTimes(NamedTuple):
    """What one epoch took.

    Attributes:
        step_seconds: Seconds for one batch.
        is_ahead: Whether its batches had been taken ahead of their turn.
        pipeline_seconds: Seconds in which the pipeline made one of these, its start included; `None` as they come.
        stages: What the stages of the pipeline cost, where that is known.
    """

    step_seconds: float
    is_ahead: bool
    pipeline_seconds: float | None = None
    stages: tuple[Stage, ...] = ()


class EpochProbe(Probe):
    """Runs the executions of an epoch as they come, or on batches that were taken ahead, and times them.

    As they come, all of the epoch counts, the start of its pipeline included. Of batches taken ahead the first
    execution is not timed where there are others; what does not fit into memory is run as it comes.

    Args:
        executions: Number of executions of the epoch.
        steps: Number of its batches, or `None` where nobody knows.
        clock: Returns the time in seconds.
        began: Time at which the epoch began; `None` to take its batches ahead of their turn.

    Attributes:
        result: The times; `None` before the end, or where they could not be taken.
    """

    def __init__(self, executions: int, steps: int | None, clock: Callable[[], float], began: float | None) -> None:
        self._executions = executions
        self._steps = steps
        self._clock = clock
        self.result: EpochTimes | None = None
        super().__init__(self._time_ahead() if began is None else self._time_as_it_comes(began))

    def invalidate(self) -> None:
        """End it: the epoch was shorter than the one before."""
        self.done = True

    def _time_as_it_comes(self, began: float) -> Generator[Any, Execution, None]:
        execution = yield None
        steps, result = 0, None
        for i in range(self._executions):
            if i:
                execution = yield result
            result, steps = call_execution(execution.run), steps + execution.steps
        execution.wait_for(result)
        self.result = EpochTimes((self._clock() - began) / (self._steps or steps), is_ahead=False)
        self.done = True
        yield result

    def _time_ahead(self) -> Generator[Any, Execution, None]:
        execution = yield None
        stages = tuple(execution.stages())
        ahead = execution.take_ahead(self._executions, MAX_BYTES_AHEAD, self._clock)
        if ahead is None:
            result = call_execution(execution.run)  # which raises where the data has ended
            self.refused = self.done = True
            yield result
            return
        begin, timed = self._clock(), ahead.batches
        result = call_execution(execution.run_on, ahead)
        if ahead.executions > 1:
            execution.wait_for(result)
            begin, timed = self._clock(), timed - ahead.steps_of_first
        for _ in range(1, ahead.executions):
            execution = yield result
            result = call_execution(execution.run_on, ahead)
        execution.wait_for(result)
        seconds = (self._clock() - begin) / timed
        # With its start, as that of the epoch as it comes.
        self.result = EpochTimes(seconds, True, sum(ahead.seconds) / ahead.batches, stages)
        if ahead.error is not None:
            execution = yield result
            call_execution(execution.run_on, ahead)  # which raises it
        self.done = True
        yield result


class ShortEpochs:
    """Measures epochs that are too short for a probe: one as it comes, the next on batches that are there.

    From then on every epoch is timed as it comes.

    Attributes:
        step_seconds: Seconds for one batch in the last epoch that was timed as it came; `None` before.
        result: The measurements; `None` before there are both kinds.
    """

    def __init__(self) -> None:
        self.step_seconds: float | None = None
        self.result: ProbedInput | None = None
        self._warms_up = False

    def probe(self, executions: int, steps: int | None, clock: Callable[[], float], began: float) -> EpochProbe:
        """Return the probe for an epoch of so many executions, and steps where that is known, which then began."""
        is_ahead = self.step_seconds is not None and self.result is None
        return EpochProbe(executions, steps, clock, None if is_ahead else began)

    def add(self, times: EpochTimes, executions: int) -> None:
        """Add the times of an epoch of so many executions."""
        if not times.is_ahead:
            self.step_seconds = times.step_seconds
        elif executions == 1 and not self._warms_up:
            self._warms_up = True  # its only execution may have been traced anew, for batches of another source
        elif self.step_seconds is not None:
            self.result = ProbedInput(
                self.step_seconds, times.step_seconds, times.pipeline_seconds, 0.0, times.stages
            )
