"""The step time in epochs too short for a probe: first of one as it comes, then of one whose batches are ready."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from keras_tpu_ext._runtime.common.executions import Execution, Stage
from keras_tpu_ext.callbacks._input_probe import (
    MAX_BYTES_AHEAD,
    Probe,
    ProbedInput,
    call_execution,
)

_EPOCHS = 5  # the median of the last ones is used: tf.data's start and end sometimes wait for its tuner


class EpochTimes(NamedTuple):
    """The times of one epoch."""

    step_seconds: float  # seconds for one batch
    steps: int  # number of batches that were timed
    is_ahead: bool  # whether its batches had been taken ahead of time
    # Seconds that the pipeline took for one of these, its start included; else `None`.
    pipeline_seconds: float | None = None
    stages: tuple[Stage, ...] = ()  # the cost of the pipeline's stages, if known


class EpochProbe(Probe):
    """Runs the executions of an epoch as they come, or on batches that were taken ahead, and times them.

    For executions as they come, the whole epoch counts, the start of its pipeline included. For batches taken ahead,
    the first execution is not timed if there are others; batches that do not fit into memory run as they come.

    Args:
        executions: Number of executions of the epoch.
        steps: Number of its batches, or `None` if unknown.
        clock: Returns the time in seconds.
        began: Time at which the epoch began; `None` to take its batches ahead of time.
    """

    def __init__(self, executions: int, steps: int | None, clock: Callable[[], float], began: float | None) -> None:
        self._executions = executions
        self._steps = steps
        self._clock = clock
        self.result: EpochTimes | None = None  # the times; `None` before the end, or if they could not be measured
        super().__init__(self._time_ahead() if began is None else self._time_as_it_comes(began))

    def invalidate(self) -> None:
        """End the probe: the epoch was shorter than the one before."""
        self.done = True

    def _time_as_it_comes(self, began: float) -> Generator[Any, Execution, None]:
        execution = yield None
        steps, result = 0, None
        for i in range(self._executions):
            if i:
                execution = yield result
            result, steps = call_execution(execution.run), steps + execution.steps
        execution.wait_for(result)
        steps = self._steps or steps
        self.result = EpochTimes((self._clock() - began) / steps, steps, is_ahead=False)
        self.done = True
        yield result

    def _time_ahead(self) -> Generator[Any, Execution, None]:
        execution = yield None
        stages = tuple(execution.stages())
        ahead = execution.take_ahead(self._executions, MAX_BYTES_AHEAD, self._clock)
        if ahead is None:
            result = call_execution(execution.run)  # raises if the data has ended
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
        # Including its start, like that of the epoch as it comes.
        self.result = EpochTimes(seconds, timed, True, sum(ahead.seconds) / ahead.batches, stages)
        if ahead.error is not None:
            execution = yield result
            call_execution(execution.run_on, ahead)  # raises the error
        self.done = True
        yield result


class ShortEpochs:
    """Measures epochs that are too short for a probe: one as it comes, the next on batches that are ready.

    From then on every epoch is timed as it comes.

    Attributes:
        step_seconds: Seconds for one batch in the median of the last epochs that were timed as they came; `None`
            before.
        result: The measurements; `None` before there are both kinds.
    """

    def __init__(self) -> None:
        self._as_they_came: deque[float] = deque(maxlen=_EPOCHS)
        self.result: ProbedInput | None = None
        self._warms_up = False
        self._last: EpochTimes | None = None

    @property
    def step_seconds(self) -> float | None:
        return statistics.median(self._as_they_came) if self._as_they_came else None

    def probe(self, executions: int, steps: int | None, clock: Callable[[], float], began: float) -> EpochProbe:
        """Return the probe for an epoch of this many executions, and steps if known, that began at this time."""
        is_ahead = self.step_seconds is not None and self.result is None
        return EpochProbe(executions, steps, clock, None if is_ahead else began)

    def end(self, seconds: float) -> None:
        """Add the seconds that the end of the pipeline took to those of the last epoch."""
        if self._last is not None and not self._last.is_ahead:
            self._as_they_came[-1] = self._last.step_seconds + seconds / self._last.steps

    def add(self, times: EpochTimes, executions: int) -> None:
        """Add the times of an epoch of this many executions."""
        self._last = times
        if not times.is_ahead:
            self._as_they_came.append(times.step_seconds)
        elif executions == 1 and not self._warms_up:
            self._warms_up = True  # its only execution may have been retraced, for batches of another source
        elif self.step_seconds is not None:
            self.result = ProbedInput(
                self.step_seconds, times.step_seconds, times.pipeline_seconds, 0.0, times.stages
            )
