"""The time of a step in `fit`, and on batches that are ready."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from typing import NamedTuple

from keras_tpu_ext._runtime.common.executions import BatchesAhead, Execution, Stage
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext.callbacks._rates import StepTimes

_MAX_BYTES_AHEAD = 2**28  # of batches taken ahead, which are in memory all at once
_BUFFERED = 0.1  # of a step: a batch that came faster was in a buffer
_WORTH_TELLING = 0.05  # of an epoch
_ENOUGH = 10  # from this many executions on, the longest is left out


class ProbedInput(NamedTuple):
    """The measurements of one probe."""

    step_seconds: float  # seconds for one batch in `fit`, waiting included
    compute_seconds: float  # seconds for one batch that is ready
    # Seconds that the pipeline takes for one batch while nothing waits for the step; `None` if the batches came out
    # of a buffer, so that it is only known to be faster than the step.
    pipeline_seconds: float | None
    # Seconds by which it made `fit` longer: the time that the devices were idle, less the waiting that this saved.
    cost_seconds: float
    stages: tuple[Stage, ...]  # the cost of the pipeline's stages, if known


class InputProbe:
    """Runs some executions as they come, then takes the batches for as many ahead of time and runs them.

    Its cost is that the devices are idle while batches are taken, unless they would have waited for these anyway.
    """

    def __init__(self, count: int, clock: Callable[[], float]) -> None:
        self._count = count
        self._clock = clock
        self._is_valid = True
        self.result: ProbedInput | None = None  # `None` before the end, or if it could not be measured
        self.done = False  # whether the probe is over
        self.refused = False  # whether batches cannot be taken from this pipeline ahead of time
        self._executions = self._measure()
        next(self._executions)

    def run(self, execution: Execution) -> Nest:
        """Run an execution; call this for each one until the probe is `done`."""
        try:
            return self._executions.send(execution)
        except _DataEndedError as ended:
            self.done = True
            raise StopIteration from ended
        except BaseException:  # including TensorFlow's signal that the data has ended
            self.done = True
            raise

    def invalidate(self) -> None:
        """Discard the times: something else happened between the executions."""
        self._is_valid = False

    def _measure(self) -> Generator[Nest, Execution, None]:
        """Get each execution and yield its result."""
        execution = yield None
        result = _call(execution.run)
        execution.wait_for(result)  # do not time what was dispatched before
        begin = self._clock()
        steps = 0
        for i in range(self._count):
            execution = yield result
            result, steps = _call(execution.run), steps + execution.steps
            if i == self._count - 1:
                execution.wait_for(result)
        step_seconds = (self._clock() - begin) / steps
        execution = yield result

        begin, stages = self._clock(), tuple(execution.stages())
        ahead = execution.take_ahead(self._count + 1, _MAX_BYTES_AHEAD, self._clock)
        cost = self._clock() - begin
        if ahead is None:
            result = _call(execution.run)  # raises if the data has ended
            self.refused = self.done = True
            yield result
            return
        result = _call(execution.run_on, ahead)
        execution.wait_for(result)
        begin = self._clock()
        for i in range(1, ahead.executions):
            execution = yield result
            result = _call(execution.run_on, ahead)
            if i == ahead.executions - 1:
                execution.wait_for(result)
        timed = ahead.batches - ahead.steps_of_first
        if timed > 0 and self._is_valid:
            compute_seconds = (self._clock() - begin) / timed
            own = _pipeline_seconds(ahead, compute_seconds)
            saved = (step_seconds - compute_seconds) * ahead.batches
            self.result = ProbedInput(step_seconds, compute_seconds, own, max(cost - saved, 0.0), stages)
        if ahead.error is not None:
            execution = yield result
            _call(execution.run_on, ahead)  # raises the error
        self.done = True
        yield result


class _DataEndedError(Exception):
    """Replaces a `StopIteration` inside a generator, which may not raise one."""


def _call(call: Callable[..., Nest], *args: BatchesAhead) -> Nest:
    """Call `call` inside a generator; the end of the data becomes a `_DataEndedError`."""
    try:
        return call(*args)
    except StopIteration as ended:
        raise _DataEndedError from ended


def probe_length(count: int) -> int:
    """Return the length of a probe that times `count` executions on either side; each side has one more at first."""
    return 2 * (count + 1)


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


class StepMeter:
    """Averages the seconds of a step, from begin to begin of executions with nothing else between them."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._times = StepTimes()
        self.start_epoch()

    def start_epoch(self) -> None:
        """Reset the sums of an epoch; the time between two epochs is not a step."""
        self._first_of_epoch = len(self._times)
        self._last: tuple[float, int] | None = None
        self._began: float | None = None
        self._ended, self._steps, self._steps_of_last = 0.0, 0, 0
        self.executions = 0  # that the epoch has begun, those of a `pause` included

    def begin(self, now: float, steps: int) -> None:
        """Add the begin of an execution of `steps` steps."""
        self._add(now, steps)
        # The first two of an epoch start with empty buffers, or compile.
        if self._last is not None and self.executions > 3:
            before, of = self._last
            self._times.add(of, now - before)
        self._last = (now, steps)

    def _add(self, now: float, steps: int) -> None:
        self.executions += 1
        if self._began is None:
            self._began = now
        self._ended, self._steps, self._steps_of_last = now, self._steps + steps, steps

    def pause(self, now: float, steps: int) -> None:
        """Count an execution, but neither its time nor that since the last begin."""
        self._add(now, steps)
        self._last = None

    def left_out(self, step_seconds: float) -> float:
        """Return the seconds of the epoch beyond those of its steps; 0 if they are less than a twentieth of it."""
        if self._began is None:
            return 0.0
        seconds = self._ended - self._began
        left_out = seconds - step_seconds * (self._steps - self._steps_of_last)
        return left_out if left_out > _WORTH_TELLING * seconds else 0.0

    def rolling_average(self) -> float | None:
        """Return the seconds of a step over the window; `None` if it is empty."""
        return _average(self._times.executions(-self._window))

    def epoch_average(self) -> float | None:
        """Return the seconds of a step over the epoch; `None` if nothing was timed."""
        return _average(self._times.executions(self._first_of_epoch))


def _average(executions: Collection[tuple[int, float]]) -> float | None:
    """Return the seconds of a step.

    Of enough executions the longest is left out: a single pause comes from the process, such as tf.data's tuner or
    another program, and better input does not remove it. Pauses that recur do count.
    """
    if not executions:
        return None
    steps, seconds = map(sum, zip(*executions, strict=True))
    if len(executions) < _ENOUGH:
        return seconds / steps
    longest = max(executions, key=lambda one: one[1] / one[0])
    return (seconds - longest[1]) / (steps - longest[0])
