"""The ledger of a `fit`: every second of it in one bucket, and what a step takes on average."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.executions import Execution, Interception
from keras_tpu_ext._runtime.common.types import Callback, Model, Nest
from keras_tpu_ext.callbacks._buckets import (
    CHECKPOINT,
    COMPILE,
    IDLE,
    INPUT,
    STARTUP,
    TRAINING,
    VALIDATION,
    Buckets,
    Cycle,
)
from keras_tpu_ext.callbacks._hooks import Hooks, all_of, bucket_of
from keras_tpu_ext.callbacks._input_probe import InputProbe, ProbeSchedule

_WARMUP = 3  # executions of an epoch: they start with empty buffers, or compile
_SAMPLED = (0, 1)  # executions after which it waits for the devices
_ENOUGH = 10  # from this many executions on, the longest is left out


class StepCosts:
    """The seconds of a step by bucket, on average over executions.

    Of enough executions the longest is left out: a single pause comes from the process, such as tf.data's tuner or
    another program. Pauses that recur do count.
    """

    def __init__(self, cycles: Collection[Cycle] = ()) -> None:
        self.executions = self.steps = 0
        self.seconds: Counter[str] = Counter()
        self._longest: tuple[float, Cycle | None] = (0.0, None)
        for cycle in cycles:
            self.add(cycle)

    def add(self, cycle: Cycle) -> None:
        """Add the cycle of an execution."""
        self.executions += 1
        self.steps += cycle.steps
        total = 0.0
        for bucket, seconds in cycle.seconds:
            self.seconds[bucket] += seconds
            total += seconds
        if total / cycle.steps > self._longest[0]:
            self._longest = total / cycle.steps, cycle

    def per_step(self, compute_seconds: float | None = None) -> dict[str, float] | None:
        """Return seconds by bucket, or `None` if there are none.

        `compute_seconds` are those of a step whose batch is ready, if the step reads batches in its graph.
        """
        sums, steps, longest = self.seconds.copy(), self.steps, self._longest[1]
        if self.executions >= _ENOUGH and longest is not None:
            steps -= longest.steps
            for bucket, seconds in longest.seconds:
                sums[bucket] -= seconds
        if not steps:
            return None
        each = {bucket: seconds / steps for bucket, seconds in sums.items()}
        return each if compute_seconds is None else _moved(each, INPUT, each.get(TRAINING, 0.0) - compute_seconds)


def _moved(seconds: dict[str, float], bucket: str, part: float) -> dict[str, float]:
    """Return seconds by bucket with a part of `training` in another bucket."""
    part = max(part, 0.0)
    return {
        **seconds,
        TRAINING: seconds.get(TRAINING, 0.0) - part,
        bucket: seconds.get(bucket, 0.0) + part,
    }


class _Ran(NamedTuple):
    """An execution that has been called."""

    execution: Execution
    output: Nest
    steps: int
    probed: bool
    is_steady: bool  # whether its cycle counts for what a step takes


class FitLedger:
    """Watches one `fit`, by its executions and its callbacks' hooks.

    On JAX the host reads batches, so waiting is timed as it happens. On TensorFlow a step reads its batch in its
    graph: an `InputProbe` times steps on batches that are ready, and what steps take beyond that is waiting.

    Args:
        model: The model.
        callbacks: All callbacks of this `fit`.
        began: The `time.perf_counter` of its first line.
        clock: Returns the time in seconds.
        window: Number of executions in `recent`.
        probes: Whether to probe the input even if waiting can be timed without it.
    """

    def __init__(
        self,
        model: Model,
        callbacks: Sequence[Callback],
        began: float,
        *,
        clock: Callable[[], float],
        window: int,
        probes: bool,
    ) -> None:
        self._model, self._probes_all = model, probes
        self.began = clock() - (time.perf_counter() - began)
        self._ended: float | None = None
        self._compiles = getattr(_runtime.probes, "watch_compiles", _NoWatch)()
        self.buckets = Buckets(clock, self._compiles.seconds, self.began, STARTUP)
        self.hooks = Hooks(
            callbacks,
            self.buckets,
            before={
                "on_epoch_begin": self._begin_epoch,
                "on_test_begin": self._begin_validation,
                "on_epoch_end": self._end_training,
            },
            after={
                "on_epoch_begin": lambda: self._open(INPUT),
                "on_test_end": lambda: self._open(IDLE),
                "on_train_end": self._end_epochs,
            },
        )
        self.callbacks: list[Any] = [self.hooks]
        self._saves = any(bucket_of(callback) == CHECKPOINT for callback in callbacks)
        steps = next((one.params.get("steps") for one in callbacks if getattr(one, "params", None)), None)
        self.probes = ProbeSchedule(self.buckets, steps)
        self._probe: InputProbe | None = None
        self._interception: Interception | None = None
        self._last: _Ran | None = None
        self._tail = 0.0  # seconds for which the devices compute after an execution's call
        self._executions = 0  # of this epoch
        # Executions that read batches in their graph, and those of them that were traced.
        self._in_graph: StepCosts | None = None
        self._traced = StepCosts()
        self.costs = StepCosts()  # of this epoch
        self._begins: list[tuple[float, int]] = []  # of the first and the last execution of this epoch, and the steps
        self.recent: deque[Cycle] = deque(maxlen=window)

    @property
    def compute_seconds(self) -> float | None:
        """Seconds of a step whose batch is ready, if steps read in their graph, and if it is known."""
        return self.probes.found[-1].compute_seconds if self._in_graph and self.probes.found else None

    @property
    def executions(self) -> int:
        """Number of executions of this epoch."""
        return self._executions

    @property
    def steps_of_epoch(self) -> int:
        """Number of steps of this epoch before its last execution."""
        return self._begins[-1][1] if self._begins else 0

    @property
    def knows_input(self) -> bool:
        """Whether it is known how long steps wait for their batches."""
        return self._in_graph is None or bool(self.probes.found)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each bucket until now, or until the end of `fit`."""
        found, in_graph = self.buckets.until(self.now()), self._in_graph
        if in_graph is None or not in_graph.steps:
            return found
        step = in_graph.seconds[TRAINING] / in_graph.steps
        # What an execution that is traced takes beyond others is in the compiler, which tells nothing.
        found = _moved(found, COMPILE, self._traced.seconds[TRAINING] - step * self._traced.steps)
        if self.compute_seconds is not None:
            found = _moved(found, INPUT, in_graph.seconds[TRAINING] - self.compute_seconds * in_graph.steps)
        return {bucket: seconds for bucket, seconds in found.items() if seconds > 0}

    def now(self) -> float:
        """Return the time, or that of the end of `fit`."""
        return self.buckets.clock() if self._ended is None else self._ended

    def left_out(self, step_seconds: float) -> float:
        """Return the seconds of this epoch beyond those of its steps."""
        if len(self._begins) < 2:
            return 0.0
        (began, _), (ended, steps) = self._begins
        return max(ended - began - step_seconds * steps, 0.0)

    def end(self) -> None:
        """Close the ledger."""
        self._stop_intercepting()
        self.buckets.end_cycle(computing=False)
        self._ended = self.buckets.clock()

    def _open(self, bucket: str) -> None:
        self.buckets.open(bucket)

    def _begin_epoch(self) -> None:
        self._executions = 0
        self.costs, self._begins = StepCosts(), []
        self.probes.begin_epoch()
        self._open(IDLE)
        if self._interception is None or not self._interception.is_in_place():
            self._stop_intercepting()
            self._interception = _runtime.probes.intercept_executions(self._model, self._around)

    def _begin_validation(self) -> None:
        self.buckets.relabel(IDLE, VALIDATION)  # what comes before it, such as opening the data
        self._end_training()
        self._open(VALIDATION)

    def _end_training(self) -> None:
        """Wait for the devices at the end of an epoch's steps, as Keras is about to."""
        if self._probe is not None:
            self._close_probe()
        ran, self._last = self._last, None
        if ran is None:
            return
        computing = not ran.execution.is_ready(ran.output)
        bucket = self.buckets.open(TRAINING)
        ran.execution.wait_for(ran.output)
        self.buckets.open(bucket)
        cycle = self.buckets.end_cycle(computing=computing, steps=ran.steps)
        if ran.steps == 1:  # or it may have run fewer
            self._note_in_graph(ran, cycle)

    def _end_epochs(self) -> None:
        """Charge what `fit` does after the last hook, which is to wait for a checkpoint if there is one."""
        self._open(CHECKPOINT if self._saves else IDLE)
        self._ended = self.buckets.clock()  # of a model outside of a scope there is no later one
        self._stop_intercepting()

    def _stop_intercepting(self) -> None:
        if self._interception is not None:
            self._interception.undo()
            self._interception = None

    def _around(self, execution: Execution) -> Nest:
        """Run an execution, in a probe if one is due."""
        steps = execution.steps
        if self._probe is None and (execution.reads_in_graph or self._probes_all):
            self._probe = self.probes.next(execution, *self._step_and_wait())
        reads_itself = not execution.reads_in_graph and self._probe is None
        if not reads_itself:
            self._begin(execution)
        probe = self._probe
        try:
            if probe is not None:
                result = probe.run(execution)
            else:
                result = execution.run_reading(lambda: self._open(INPUT), lambda: self._begin(execution))
            output = execution.output_of(result)
            if self._executions in _SAMPLED:
                began = self.buckets.clock()
                execution.wait_for(output)
                self._tail = self.buckets.clock() - began
            else:
                self.buckets.computes_for(self._tail)
        finally:
            self.buckets.open(IDLE)
            if probe is not None and probe.done:
                self._close_probe()
        is_steady = self._executions >= _WARMUP and probe is None
        self._last = _Ran(execution, output, steps, probe is not None, is_steady)
        self._executions += 1
        return result

    def _begin(self, execution: Execution) -> None:
        """End the cycle of the last execution: the devices can go on."""
        ran, self._last = self._last, None
        if ran is not None:
            computing = not ran.execution.is_ready(ran.output)
            if self._executions in _SAMPLED and computing:
                ran.execution.wait_for(ran.output)
            cycle = self.buckets.end_cycle(computing=computing, steps=ran.steps)
            self._note_in_graph(ran, cycle)
            if ran.is_steady:
                self.costs.add(cycle)
                self.recent.append(cycle)
            self._note_begin(ran.steps)
        elif not self._begins:  # the first of an epoch; else a further batch of the same execution
            self.buckets.end_cycle(computing=False)
            self._note_begin(0)
        self.buckets.open(TRAINING)

    def _note_begin(self, steps: int) -> None:
        """Note the begin of an execution after so many steps of the one before it."""
        before = self._begins[-1][1] if self._begins else 0
        self._begins = [*self._begins[:1], (self.buckets.clock(), before + steps)]

    def _note_in_graph(self, ran: _Ran, cycle: Cycle) -> None:
        """Add a cycle to those whose execution read its batches in its graph."""
        if not ran.execution.reads_in_graph:
            return
        self._in_graph = self._in_graph or StepCosts()
        if not ran.probed:
            (self._traced if COMPILE in dict(cycle.seconds) else self._in_graph).add(cycle)

    def _step_and_wait(self) -> tuple[float, float]:
        """Return the seconds of a step, and those that it waits; 0 as long as they are not known."""
        costs = self.costs.per_step(self.compute_seconds) or {}
        return sum(costs.values()), costs.get(INPUT, 0.0)

    def _close_probe(self) -> None:
        if self._probe is not None:
            self.probes.end(self._probe)
            self._probe = None


class LedgerUser:
    """A mixin for callbacks that share one ledger of each `fit`."""

    window = 20
    wants_probes = False
    clock: Callable[[], float]

    def __init__(self) -> None:
        super().__init__()
        self._ledger: FitLedger | None = None
        _runtime.progress.watch_fits(_open_ledger)


# By the id of the model in `fit`; one is left there by a `fit` outside of a scope that was interrupted.
_OPEN: WeakValueDictionary[int, FitLedger] = WeakValueDictionary()


def _open_ledger(model: Model, callbacks: list[Callback], began: float) -> FitLedger | None:
    """Return the ledger of a `fit` for the callbacks that use one, if there are any."""
    all_of_them = all_of(callbacks)
    users = [callback for callback in all_of_them if isinstance(callback, LedgerUser)]
    interrupted = _OPEN.pop(id(model), None)
    if interrupted is not None:
        interrupted.end()
    if not users:
        return None
    ledger = FitLedger(
        model,
        all_of_them,
        began,
        clock=users[0].clock,
        window=max(user.window for user in users),
        probes=any(user.wants_probes for user in users),
    )
    _OPEN[id(model)] = ledger
    for user in users:
        user._ledger = ledger
    return ledger


class _NoWatch:
    def seconds(self):
        return 0.0
