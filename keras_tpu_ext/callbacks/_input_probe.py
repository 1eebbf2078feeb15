"""How long a step takes as it comes, and on batches that are there already."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from keras_tpu_ext._runtime.common.executions import BatchesAhead, Execution, Stage

_MOST_BYTES = 2**28  # of batches taken ahead, which are in memory all at once
_DRAINED = 0.1  # of a step: what came quicker was in a buffer


class ProbedInput(NamedTuple):
    """What one probe has found.

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


class InputProbe:
    """Runs some executions as they come, then takes the batches of as many ahead of their turn and runs them.

    Every batch is trained on once and in its order, by the same compiled step: a probe changes nothing of what is
    learned, and has nothing to restore. While batches are taken the devices stand still, and that is its cost; where
    they would have waited for these batches anyway it is none.

    Args:
        count: How many executions are timed on either side.
        clock: Returns the time in seconds.

    Attributes:
        found: What was found; `None` while there is nothing, or where it could not be found.
        over: Whether there is no more to do.
        refused: Whether this pipeline gives no batches ahead of their turn.
    """

    def __init__(self, count: int, clock: Callable[[], float]) -> None:
        self._count = count
        self._clock = clock
        self._next = self._program()
        self._spoiled = False
        next(self._next)
        self.found: ProbedInput | None = None
        self.over = False
        self.refused = False

    def run(self, execution: Execution) -> Any:
        """Make the call of an execution; call this for each one until it is `over`."""
        try:
            return self._next.send(execution)
        except _DataEndedError as ended:
            self.over = True
            raise StopIteration from ended
        except BaseException:  # among them how TensorFlow says that the data has ended
            self.over = True
            raise

    def spoil(self) -> None:
        """Believe no time any more: something else has happened between the executions."""
        self._spoiled = True

    def _program(self) -> Generator[Any, Execution, None]:
        execution = yield None
        result = _result_of(execution.run)
        execution.wait_for(result)  # what was dispatched before is not to be timed
        begin = self._clock()
        steps = 0
        for i in range(self._count):
            execution = yield result
            result, steps = _result_of(execution.run), steps + execution.steps
            if i == self._count - 1:
                execution.wait_for(result)
        step_seconds = (self._clock() - begin) / steps
        execution = yield result

        begin, stages = self._clock(), tuple(execution.stages())
        ahead = execution.take_ahead(self._count + 1, _MOST_BYTES, self._clock)
        cost = self._clock() - begin
        if ahead is None:
            result = _result_of(execution.run)  # which raises where the data has ended
            self.refused = self.over = True
            yield result
            return
        result = _result_of(execution.run_on, ahead)
        execution.wait_for(result)
        begin = self._clock()
        for i in range(1, ahead.executions):
            execution = yield result
            result = _result_of(execution.run_on, ahead)
            if i == ahead.executions - 1:
                execution.wait_for(result)
        timed = ahead.batches - ahead.steps_of_first
        if timed > 0 and not self._spoiled:
            compute_seconds = (self._clock() - begin) / timed
            own = _own_seconds(ahead, compute_seconds)
            saved = (step_seconds - compute_seconds) * ahead.batches
            self.found = ProbedInput(step_seconds, compute_seconds, own, max(cost - saved, 0.0), stages)
        if ahead.error is not None:
            execution = yield result
            _result_of(execution.run_on, ahead)  # which raises it
        self.over = True
        yield result


class _DataEndedError(Exception):
    """What a `StopIteration` is inside a generator, which may raise none."""


def _result_of(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except StopIteration as ended:
        raise _DataEndedError from ended


def executions_of(count: int) -> int:
    """Return how many executions a probe has that times `count` on either side; each side begins with one more."""
    return 2 * (count + 1)


def _own_seconds(ahead: BatchesAhead, compute_seconds: float) -> float | None:
    """Return the seconds for one batch of the second half of those taken; the first may come out of a buffer."""
    half = ahead.seconds[len(ahead.seconds) // 2 :]
    seconds = sum(half) / sum(ahead.steps[-len(half) :])
    return seconds if seconds > _DRAINED * compute_seconds else None
