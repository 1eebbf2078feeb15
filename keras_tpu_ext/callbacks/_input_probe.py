"""The time of a step in `fit`, and on batches that are there already."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from keras_tpu_ext._runtime.common.executions import BatchesAhead, Execution, Stage

MAX_BYTES_AHEAD = 2**28  # of batches taken ahead, which are in memory all at once
_BUFFERED = 0.1  # of a step: what came quicker was in a buffer
_WORTH_TELLING = 0.05  # of an epoch
_ENOUGH = 10  # executions from which on the longest is left out


class ProbedInput(NamedTuple):
    """The measurements of one probe.

    Attributes:
        step_seconds: Seconds for one batch as `fit` has them, waiting included.
        compute_seconds: Seconds for one batch that is there already.
        pipeline_seconds: Seconds in which the pipeline makes one batch while nothing waits for the step, `None`
            where they came out of a buffer, so that nothing is known but that it is quicker than the step.
        cost_seconds: Seconds by which it made the `fit` longer: those for which the devices stood still, less what
            they then did not wait.
        stages: What the stages of the pipeline cost, where that is known.
    """

    step_seconds: float
    compute_seconds: float
    pipeline_seconds: float | None
    cost_seconds: float
    stages: tuple[Stage, ...]


class Probe:
    """Runs executions one after the other, as a generator says, which gets each of them and yields its result.

    Args:
        runs: The generator.

    Attributes:
        done: Whether the probe is over.
        refused: Whether this pipeline gives no batches ahead of their turn.
    """

    def __init__(self, runs: Generator[Any, Execution, None]) -> None:
        self._runs = runs
        self.done = False
        self.refused = False
        next(runs)

    def run(self, execution: Execution) -> Any:
        """Run an execution; call this for each one until the probe is `done`."""
        try:
            return self._runs.send(execution)
        except _DataEndedError as ended:
            self.done = True
            raise StopIteration from ended
        except BaseException:  # among them how TensorFlow says that the data has ended
            self.done = True
            raise


class InputProbe(Probe):
    """Runs some executions as they come, then takes the batches of as many ahead of their turn and runs them.

    Every batch is trained on once and in its order, by the same compiled step: a probe changes nothing of what is
    learned, and has nothing to restore. While batches are taken the devices stand still, and that is its cost; where
    they would have waited for these batches anyway it is none.

    Args:
        count: How many executions are timed on either side.
        clock: Returns the time in seconds.

    Attributes:
        result: The measurements; `None` before the end, or where they could not be made.
    """

    def __init__(self, count: int, clock: Callable[[], float]) -> None:
        self._count = count
        self._clock = clock
        self._is_valid = True
        self.result: ProbedInput | None = None
        super().__init__(self._measure())

    def invalidate(self) -> None:
        """Discard the times: something else has happened between the executions."""
        self._is_valid = False

    def _measure(self) -> Generator[Any, Execution, None]:
        execution = yield None
        result = call_execution(execution.run)
        execution.wait_for(result)  # what was dispatched before is not to be timed
        begin = self._clock()
        steps = 0
        for i in range(self._count):
            execution = yield result
            result, steps = call_execution(execution.run), steps + execution.steps
            if i == self._count - 1:
                execution.wait_for(result)
        step_seconds = (self._clock() - begin) / steps
        execution = yield result

        begin, stages = self._clock(), tuple(execution.stages())
        ahead = execution.take_ahead(self._count + 1, MAX_BYTES_AHEAD, self._clock)
        cost = self._clock() - begin
        if ahead is None:
            result = call_execution(execution.run)  # which raises where the data has ended
            self.refused = self.done = True
            yield result
            return
        result = call_execution(execution.run_on, ahead)
        execution.wait_for(result)
        begin = self._clock()
        for i in range(1, ahead.executions):
            execution = yield result
            result = call_execution(execution.run_on, ahead)
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
            call_execution(execution.run_on, ahead)  # which raises it
        self.done = True
        yield result


class _DataEndedError(Exception):
    """Stands for a `StopIteration` inside a generator, which may raise none."""


def call_execution(call: Callable[..., Any], *args: Any) -> Any:
    """Call `call` inside a generator, where the end of the data is a `_DataEndedError`."""
    try:
        return call(*args)
    except StopIteration as ended:
        raise _DataEndedError from ended


def probe_length(count: int) -> int:
    """Return the number of executions of a probe that times `count` on either side; each begins with one more."""
    return 2 * (count + 1)


def _pipeline_seconds(ahead: BatchesAhead, compute_seconds: float) -> float | None:
    """Return the seconds for one batch of those that were not in a buffer; `None` if that is all of them.

    At first batches come out of a buffer, and the one after them was begun before: it comes too early. So the mean is
    over the second half, and over less where the buffer lasted longer.
    """
    count = len(ahead.seconds)
    each = [seconds / steps for seconds, steps in zip(ahead.seconds, ahead.steps, strict=True)]
    made = next((i for i, seconds in enumerate(each) if seconds > _BUFFERED * compute_seconds), None)
    if made is None:
        return None
    first = max(count // 2, min(made + 1, count - 1)) if made else count // 2
    seconds = sum(ahead.seconds[first:]) / sum(ahead.steps[first:])
    return seconds if seconds > _BUFFERED * compute_seconds else None


class StepMeter:
    """Averages the seconds of a step, from begin to begin of executions that nothing else came between.

    The longest execution is left out of an average over enough of them: a single pause is the process's, and better
    input does not cure it. (tf.data now and then waits at the end of a pipeline for its tuner's next turn, up to some
    seconds; others share the machine.) What comes again and again counts.

    Args:
        window: Number of executions in the rolling average.

    Attributes:
        executions: Number of executions that the epoch has begun, those of a `pause` included.
        pending: Times of begins that are not processed yet; the list stays the same.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self.pending: list[float] = []
        self._recent: deque[tuple[float, int]] = deque(maxlen=window)
        self.start_epoch()

    def start_epoch(self) -> None:
        """Reset the sums of an epoch; the time between two epochs is no step."""
        self._epoch: list[float] = [0.0, 0]
        self._counted = 0
        self._longest = (0.0, 1)
        self._last: tuple[float, int] | None = None
        self._began: float | None = None
        self._ended, self._steps, self._steps_of_last = 0.0, 0, 0
        self.executions = 0
        self.pending.clear()

    def begin(self, now: float, steps: int) -> None:
        """Add the begin of an execution of `steps` steps."""
        self._add(now, steps)
        # The first two of an epoch meet empty buffers, or are compiled.
        if self._last is not None and self.executions > 3:
            seconds, of = now - self._last[0], self._last[1]
            self._recent.append((seconds, of))
            self._counted += 1
            self._epoch[0] += seconds
            self._epoch[1] += of
            if seconds * self._longest[1] > self._longest[0] * of:
                self._longest = seconds, of
        self._last = (now, steps)

    def _add(self, now: float, steps: int) -> None:
        self.executions += 1
        if self._began is None:
            self._began = now
        self._ended, self._steps, self._steps_of_last = now, self._steps + steps, steps

    def flush(self, steps: int) -> None:
        """Process pending begins, of executions of `steps` steps each."""
        for now in self.pending:
            self.begin(now, steps)
        self.pending.clear()

    def pause(self, now: float, steps: int) -> None:
        """Count an execution, but neither its time nor that since the last begin."""
        self._add(now, steps)
        self._last = None

    def left_out(self, step_seconds: float) -> float:
        """Return the seconds of the epoch that its steps do not need at `step_seconds` each.

        0 where they are less than a twentieth of it.
        """
        if self._began is None:
            return 0.0
        seconds = self._ended - self._began
        left_out = seconds - step_seconds * (self._steps - self._steps_of_last)
        return left_out if left_out > _WORTH_TELLING * seconds else 0.0

    def rolling_average(self) -> float | None:
        """Return the seconds of a step over the window; `None` where it is empty."""
        if not self._recent:
            return None
        seconds, steps = map(sum, zip(*self._recent, strict=True))
        return _average(seconds, steps, len(self._recent), max(self._recent, key=lambda one: one[0] / one[1]))

    def epoch_average(self) -> float | None:
        """Return the seconds of a step over the epoch; `None` where nothing was timed."""
        seconds, steps = self._epoch
        return _average(seconds, steps, self._counted, self._longest) if self._counted else None


def _average(seconds: float, steps: float, executions: int, longest: tuple[float, int]) -> float:
    if executions < _ENOUGH:
        return seconds / steps
    return (seconds - longest[0]) / (steps - longest[1])
