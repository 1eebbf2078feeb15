"""Intercept the executions of a running `fit`, and run them on batches that were taken ahead."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from keras_tpu_ext._runtime.common.types import Model, Nest


class CacheUse(NamedTuple):
    """What came from a cache of compiled programs."""

    hits: int = 0  # programs that were read
    misses: int = 0  # programs that were compiled
    seconds_saved: float = 0.0  # of compiling, as it once took, without reading

    def __str__(self) -> str:
        return f"hits: {self.hits}, misses: {self.misses}, {self.seconds_saved:.3g} s of compiling saved"


class CompileWatch:
    """Counts the wall seconds that the thread which opened it spends on tracing, lowering and compiling."""

    # Whether `seconds` has all of it. On TensorFlow it has only tracing: what Grappler and XLA then do is in the
    # first execution of a graph, and TensorFlow tells it nowhere.
    sees_compiler = True

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._spans: list[tuple[float, float]] = []
        self._seconds = 0.0
        self.programs = 0  # number of programs that were lowered; counted on JAX only
        self.cache = CacheUse()  # counted on JAX only
        self.is_paused = False  # whether nothing is counted that is compiled now, but for `cache`

    def seconds(self) -> float:
        """Return the seconds since the watch was opened."""
        return self._seconds

    def count_cache(self, hits: int, misses: int, saved: float) -> None:
        """Add to what this thread has asked a cache of programs for."""
        if threading.get_ident() == self._thread:
            so_far = self.cache
            self.cache = CacheUse(so_far.hits + hits, so_far.misses + misses, so_far.seconds_saved + saved)

    def add(self, began: float, ended: float, programs: int = 0) -> None:
        """Add the time of an event that has just ended; events nest, and no second counts twice."""
        if self.is_paused or threading.get_ident() != self._thread:
            return
        self.programs += programs
        while self._spans and self._spans[-1][1] > began:
            inner = self._spans.pop()
            self._seconds -= inner[1] - inner[0]
            began = min(began, inner[0])
        self._spans.append((began, ended))
        self._seconds += ended - began


Step = Literal["train", "test"]
TrainFunction = Callable[..., Nest]


@dataclasses.dataclass(frozen=True)
class BatchesAhead:
    """Batches of one or more executions, taken from a pipeline ahead of time and held where the step reads them."""

    source: Iterator[Nest]  # the iterator that the train function takes them from
    taken_from: Iterator[Nest]  # the iterator of the pipeline
    executions: int  # number of executions, a shorter last one included
    seconds: tuple[float, ...]  # time that the pipeline took for each item: a batch, or all batches of an execution
    steps: tuple[int, ...]  # number of batches in each item
    steps_of_first: int  # number of batches in the first execution
    # What the pipeline raised instead of another batch; to be raised when that batch is read.
    error: Exception | None = None

    @property
    def batches(self) -> int:
        """Number of batches."""
        return sum(self.steps)


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage of an input pipeline."""

    name: str  # the framework's name for it, such as `"ParallelMapV2"`
    seconds: float  # seconds of work for one batch, divided by the number of parallel calls


class Execution:
    """A call of the train function that has not been made yet; each runtime has a subclass."""

    # Whether the train function reads its batches within its graph, where the host cannot time it.
    reads_in_graph = True
    # What a train function raises at the end of its iterator.
    _end_errors: tuple[type[Exception], ...] = (StopIteration,)

    def __init__(self, model: Model, function: TrainFunction, args: tuple[Iterator[Nest], ...]) -> None:
        self._model = model
        self._function = function
        self._args = args

    @property
    def steps(self) -> int:
        """Number of its batches; it runs fewer if the data ends."""
        schedule = getattr(getattr(self._model, "_kte", None), "schedule", None)
        return int(self._model_steps() if schedule is None or schedule.held else schedule.requested_steps)

    @property
    def function(self) -> TrainFunction:
        """The train or test function that the model has without interceptions."""
        function = self._function
        while hasattr(function, "inner"):
            function = function.inner
        return function

    def is_settled(self) -> bool:
        """Return True if the next executions have as many steps as this one."""
        schedule = getattr(getattr(self._model, "_kte", None), "schedule", None)
        return schedule is None or schedule.held or bool(schedule.tuner.settled)

    def run(self) -> Nest:
        """Make the call."""
        return self._function(*self._args)

    def run_reading(self, clock: Callable[[], float], note: Callable[[float], object]) -> Nest:
        """Make the call, and call `note` with the seconds of each reading of batches, unless that is in its graph."""
        return self.run()

    def run_on(self, ahead: BatchesAhead) -> Nest:
        """Make the call with batches that were taken ahead; raises the error that ended them, if one did."""
        try:
            return self._function(*self._args[:-1], ahead.source)
        except self._end_errors as ended:
            if ahead.error is None:
                raise
            raise ahead.error from ended

    def run_watched(self, watch: CompileWatch) -> tuple[Nest, float]:
        """Make the call; return its result, and the seconds it compiled, without what the data compile."""
        before = watch.seconds()
        return self.run(), watch.seconds() - before

    def batches(self) -> list[Nest]:
        """Return the specs of the batches of a call that `run_watched` made, as far as known."""
        raise NotImplementedError

    def take_ahead(self, executions: int, most_bytes: int, clock: Callable[[], float]) -> BatchesAhead | None:
        """Take the batches of this execution and the next ones; `None` if the iterator does not allow it."""
        iterator = self._args[-1]
        if not self._can_take_from(iterator):
            return None
        each = self._items_of_execution()
        items: list[Nest] = []
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
        source, of_first = self._source_of(items), sum(steps[:each])
        return BatchesAhead(source, iterator, executions, tuple(seconds), steps, of_first, error)

    def goes_on_after(self, ahead: BatchesAhead) -> bool:
        """Return whether its batches come from the same iterator as those taken ahead."""
        return self._args[-1] is ahead.taken_from

    def wait_for(self, result: Nest) -> None:
        """Wait until the devices have computed `result`: what `run` or `run_on` returned, or its `output_of`."""
        raise NotImplementedError

    def output_of(self, result: Nest) -> Nest:
        """Return a part of `result` that may be kept: it is not donated, and keeps no state alive."""
        return result

    def is_ready(self, output: Nest) -> bool:
        """Return whether the devices have computed what `output_of` returned; True if the host had to wait for it."""
        return True

    def stages(self) -> list[Stage]:
        """Return the stages of the pipeline, the last one first; `[]` if nothing measures them."""
        return []

    def _model_steps(self) -> int:
        return int(self._model.steps_per_execution)

    def _can_take_from(self, iterator: Iterator[Nest]) -> bool:
        """Return True if batches may be taken from `iterator` outside the train function."""
        raise NotImplementedError

    def _items_of_execution(self) -> int:
        """Return the number of items that an execution takes from its iterator."""
        return self.steps

    def _steps_of(self, item: Nest) -> int:
        """Return the number of batches in an item of the iterator."""
        return 1

    def _bytes_of(self, item: Nest) -> int:
        raise NotImplementedError

    def _source_of(self, items: Sequence[Nest]) -> Iterator[Nest]:
        """Return an iterator over `items` for the train function."""
        raise NotImplementedError


def timed(iterator: Iterator[Nest], clock: Callable[[], float], note: Callable[[float], object]) -> Iterator[Nest]:
    """Yield each item, after calling `note` with the seconds that it took to get it, or to find the end."""
    while True:
        began = clock()
        try:
            item = next(iterator)
        except StopIteration:
            return
        finally:
            note(clock() - began)
        yield item


class Interception:
    """Replaces a model's train or test function by one that passes each execution to `around`; several may nest."""

    def __init__(
        self, model: Model, kind: type[Execution], around: Callable[[Execution], Nest], step: Step = "train"
    ) -> None:
        self._model, self._kind, self._around = model, kind, around
        self._name = {"train": "train_function", "test": "test_function"}[step]
        self._intercepted: TrainFunction | None = None

    def begin(self) -> None:
        """Intercept, unless the model's function is this one, or calls it."""
        function: Any = getattr(self._model, self._name)
        inner = function
        while function is not self._intercepted and hasattr(function, "inner"):
            function = function.inner
        if function is self._intercepted:  # both are `None` where it has not been made yet
            return

        def intercepted(*args: Iterator[Nest]) -> Nest:
            is_undone = self._intercepted is not intercepted
            return inner(*args) if is_undone else self._around(self._kind(self._model, inner, args))

        intercepted.by, intercepted.inner = self, inner  # type: ignore[attr-defined]
        self._intercepted = intercepted
        setattr(self._model, self._name, intercepted)

    def undo(self) -> None:
        """Stop intercepting."""
        self._intercepted = None
        # An interception around this one removes both when it is undone.
        function: Any = getattr(self._model, self._name, None)
        while hasattr(function, "by") and function.by._intercepted is not function:
            function = function.inner
            setattr(self._model, self._name, function)
