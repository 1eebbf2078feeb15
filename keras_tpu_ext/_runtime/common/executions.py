"""Executions of a running `fit`, one by one: a callback may run them, also on batches taken ahead of their turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class BatchesAhead:
    """Batches of some executions, taken from a pipeline ahead of their turn, and held where the step reads them.

    Attributes:
        source: What the train function takes them from, in their order.
        executions: Of how many executions they are, a shorter last one included.
        seconds: How long the pipeline took for each thing that it gave: a batch, or all of an execution.
        steps: How many batches each of these was.
        steps_of_first: How many batches the first execution has.
        error: What the pipeline raised instead of another batch; whoever comes to that batch is to meet it.
    """

    source: Any
    executions: int
    seconds: tuple[float, ...]
    steps: tuple[int, ...]
    steps_of_first: int
    error: Exception | None = None

    @property
    def batches(self) -> int:
        """Return how many batches they are."""
        return sum(self.steps)


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage of an input pipeline.

    Attributes:
        name: What the framework calls it, such as `"ParallelMapV2"`.
        seconds: Seconds of work for one batch, over its parallel calls.
    """

    name: str
    seconds: float


class Execution:
    """One call of the train function, which has not been made yet.

    The runtime's own kind says what is different there.

    Args:
        model: The model that trains.
        function: Its train function.
        args: What Keras calls that with; the last one is the iterator.
    """

    # What a train function raises where its iterator has no more.
    _ends: tuple[type[Exception], ...] = (StopIteration,)

    def __init__(self, model: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._model = model
        self._function = function
        self._args = args

    @property
    def steps(self) -> int:
        """Return how many batches it has, or fewer where the data ends."""
        schedule = getattr(self._model, "_schedule", None)
        return int(self._model_steps() if schedule is None or schedule.held else schedule.requested_steps)

    def is_settled(self) -> bool:
        """Return whether the next executions have as many steps as this one."""
        schedule = getattr(self._model, "_schedule", None)
        return schedule is None or schedule.held or bool(schedule.tuner.settled)

    def run(self) -> Any:
        """Make the call."""
        return self._function(*self._args)

    def run_on(self, ahead: BatchesAhead) -> Any:
        """Make the call with batches that were taken ahead; where they end in an error, that is raised."""
        try:
            return self._function(*self._args[:-1], ahead.source)
        except self._ends as ended:
            if ahead.error is None:
                raise
            raise ahead.error from ended

    def run_and_describe(self) -> tuple[Any, Any]:
        """Make the call; return what it returns, and how its batches look, for `count_flops`, or `None`."""
        raise NotImplementedError

    def take_ahead(self, executions: int, most_bytes: int, clock: Callable[[], float]) -> BatchesAhead | None:
        """Take the batches of this execution and of those after it; `None` where that cannot be.

        Args:
            executions: Of how many executions.
            most_bytes: Nothing more is taken once the batches have this size.
            clock: Returns the time in seconds.
        """
        iterator = self._args[-1]
        if not self._can_take_from(iterator):
            return None
        each = self._items_of_execution()
        items: list[Any] = []
        seconds: list[float] = []
        size, error = 0, None
        while len(items) < executions * each and (size < most_bytes or len(items) % each):
            begin = clock()
            try:
                items.append(next(iterator))
            except StopIteration:
                break
            except Exception as raised:
                if not items:
                    raise
                error = raised
                break
            seconds.append(clock() - begin)
            size += self._bytes_of(items[-1])
        if not items:
            return None
        steps = tuple(map(self._steps_of, items))
        executions = -(-len(items) // each)
        return BatchesAhead(self._source_of(items), executions, tuple(seconds), steps, sum(steps[:each]), error)

    def wait_for(self, result: Any) -> None:
        """Wait until the devices have done what made `result`, which `run` or `run_on` returned."""
        raise NotImplementedError

    def stages(self) -> list[Stage]:
        """Return the stages of the pipeline with what they cost, the last one first; none where nobody knows."""
        return []

    def _model_steps(self) -> int:
        return int(self._model.steps_per_execution)

    def _can_take_from(self, iterator: Any) -> bool:
        """Return whether batches may be taken from `iterator` outside of the train function."""
        raise NotImplementedError

    def _items_of_execution(self) -> int:
        """Return how often an execution asks its iterator."""
        return self.steps

    def _steps_of(self, item: Any) -> int:
        """Return how many batches the iterator has given at once."""
        return 1

    def _bytes_of(self, item: Any) -> int:
        """Return the size of what the iterator has given."""
        raise NotImplementedError

    def _source_of(self, items: list[Any]) -> Any:
        """Return what the train function takes `items` from."""
        raise NotImplementedError


class Interception:
    """Somebody who makes the calls of a model's train function, until `undo`.

    There may be several of them for one model.

    Args:
        model: A model in `fit`, whose train function is made.
        kind: The runtime's kind of `Execution`.
        around: Gets each execution and returns what it returns.
    """

    def __init__(self, model: Any, kind: type[Execution], around: Callable[[Execution], Any]) -> None:
        inner = model.train_function

        def intercepted(*args: Any) -> Any:
            return inner(*args) if self._is_undone else around(kind(model, inner, args))

        intercepted.by = self  # type: ignore[attr-defined]
        self._model = model
        self._inner = inner
        self._intercepted = model.train_function = intercepted
        self._is_undone = False

    def is_in_place(self) -> bool:
        """Return whether the model's train function still is this one, or calls it."""
        function = self._model.train_function
        while function is not self._intercepted and hasattr(function, "by"):
            function = function.by._inner
        return function is self._intercepted

    def undo(self) -> None:
        """Intercept nothing any more."""
        self._is_undone = True
        # Where another one stands outside of this, that takes both away when it goes.
        while (by := getattr(self._model.train_function, "by", None)) is not None and by._is_undone:
            self._model.train_function = by._inner
