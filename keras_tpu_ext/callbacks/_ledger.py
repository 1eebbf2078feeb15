"""The ledger of a `fit`: every second of it in one bucket, and what a step takes on average."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.executions import Execution
from keras_tpu_ext._runtime.common.types import Callback, Model, Nest
from keras_tpu_ext.callbacks._buckets import CHECKPOINT, COMPILE, IDLE, INPUT, STARTUP, TRAINING, VALIDATION, Buckets
from keras_tpu_ext.callbacks._hooks import Hooks
from keras_tpu_ext.callbacks._input_probe import InputProbe, ProbeSchedule
from keras_tpu_ext.callbacks._step_costs import Cycle, Noted, Rows, StepClock, StepCosts, divided

_MOST_NOTED = 64  # cycles that are divided together, in a fraction of the time
_IDLE = Cycle._fields.index(IDLE)
_WARMUP = 3  # executions of an epoch: they start with empty buffers, or compile; after each it waits for the devices


class _Ran(NamedTuple):
    """An execution that has been called."""

    execution: Execution
    output: Nest
    steps: int
    in_graph: bool  # whether its batches were read in its graph, as its data made them
    is_steady: bool  # whether its cycle counts for what a step takes
    is_done: bool  # whether the devices have been waited for


class FitLedger(Hooks):
    """Watches one `fit`, by its executions and its callbacks' hooks, which Keras calls through it.

    On JAX the host reads batches, so waiting is timed as it happens. On TensorFlow a step reads its batch in its
    graph: an `InputProbe` times steps on batches that are ready, and what steps take beyond that is waiting. After it
    the hooks around an execution tell enough, and none is intercepted: there Python makes each step longer.

    Args:
        model: The model.
        callbacks: All callbacks of this `fit`.
        began: When it came to its first line, by the clock.
        clock: Returns the time in seconds.
        window: Number of cycles in `recent`.
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
        self._probes_all = probes
        self.began = began
        self._ended: float | None = None
        self._compiles = _runtime.probes.watch_compiles()
        super().__init__(callbacks, Buckets(clock, self._compiles.seconds, self.began, STARTUP))
        self._steps = StepClock(clock, self._compiles.seconds, self.of_batches)
        # Steps of an epoch, if they are known.
        self._known_steps = next((one.params.get("steps") for one in callbacks if getattr(one, "params", None)), None)
        self.probes = ProbeSchedule(clock, self._known_steps)
        self._probe: InputProbe | None = None
        self._interception = _runtime.probes.intercept_executions(model, self._around)
        self._ran: _Ran | None = None
        self._expects_execution = False  # or else a callback runs one, as with `train_on_batch`
        self._in_steps = False  # whether `_steps` has the time, and not `_buckets`
        self._is_behind = False  # whether the devices had not done the execution before when they got the last one
        # All executions, those that read batches in their graph, and those that were traced and do.
        self._all, self._in_graph, self._traced = StepCosts(), StepCosts(), StepCosts()
        self._reads_in_graph = False
        # Cycles not divided yet, each with whether it is steady, and whether its batches were read in the graph.
        self._noted: deque[tuple[Noted, bool, bool]] = deque()
        self._dividing = threading.Lock()  # on JAX a hook in another thread may ask for the seconds
        self.recent: Rows = np.zeros((0, len(Cycle._fields)))  # the last cycles
        self._window = window
        self._of_callbacks = np.zeros(len(self.names))  # those of each callback's hooks of batches
        self._start_epoch()

    def _start_epoch(self) -> None:
        self._divide()
        self._like_it: _Ran | None = None  # what the executions are like that are not intercepted
        self.executions = 0  # of this epoch
        self._costs = StepCosts()
        self.steps_of_epoch = 0  # before its last execution
        self._epoch_began = 0.0  # its first execution

    @property
    def costs(self) -> StepCosts:
        """What a step of this epoch takes."""
        self._divide()
        return self._costs

    @property
    def compute_seconds(self) -> float | None:
        """Seconds of a step whose batch is ready, if steps read in their graph, and if it is known."""
        return self.probes.found[-1].compute_seconds if self._reads_in_graph and self.probes.found else None

    @property
    def costliest_callback(self) -> str:
        """The bucket of the callback whose hooks of batches take longest; empty if there is none."""
        self._divide()
        seconds = dict(zip(self.names, self._of_callbacks.tolist(), strict=True))
        return max(seconds, key=lambda bucket: seconds[bucket], default="")

    @property
    def knows_input(self) -> bool:
        """Whether it is known how long steps wait for their batches."""
        return not self._reads_in_graph or bool(self.probes.found)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each bucket until now, or until the end of `fit`."""
        self._divide()
        now, in_graph, traced = self.now(), self._in_graph.sums, self._traced.sums
        found = defaultdict(float, self._buckets.until(self._epoch_began if self._in_steps else now))
        found[TRAINING] += now - self._steps.called if self._in_steps else 0.0
        of_steps = ((bucket, getattr(self._all.sums, bucket)) for bucket in (TRAINING, INPUT, IDLE, COMPILE))
        for bucket, seconds in (*of_steps, *zip(self.names, self._of_callbacks.tolist(), strict=True)):
            found[bucket] += seconds
        if in_graph.steps:
            # What an execution that is traced takes beyond others is in the compiler, which tells nothing.
            step = in_graph.training / in_graph.steps
            _move(found, COMPILE, traced.training - step * traced.steps)
            if self.compute_seconds is not None:
                _move(found, INPUT, in_graph.training - self.compute_seconds * in_graph.steps)
        return {bucket: seconds for bucket, seconds in found.items() if seconds > 0}

    def now(self) -> float:
        """Return the time, or that of the end of `fit`."""
        return self._buckets.clock() if self._ended is None else self._ended

    def left_out(self, step_seconds: float) -> float:
        """Return the seconds of this epoch, to its last execution, beyond those of its steps."""
        return max(self._steps.called - self._epoch_began - step_seconds * self.steps_of_epoch, 0.0)

    def end(self) -> None:
        """Close the ledger."""
        self._interception.undo()
        self._close_probe()
        self._end_training()
        self._buckets.open(self._buckets.bucket)
        self._ended = self._buckets.clock()

    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> None:
        """Open the epoch; what follows its hooks gets a batch."""
        self.probes.begin_epoch(self.executions)
        self.find_doing()
        self._start_epoch()
        self._buckets.open(IDLE)
        self._call("on_epoch_begin", *args, **kwargs)
        self._buckets.open(INPUT)

    def on_train_batch_begin(self, *args: Any, **kwargs: Any) -> None:
        """Intercept the train function, which a hook may have made anew, unless its hooks tell enough."""
        self._call_of_batch("on_train_batch_begin", *args, **kwargs)
        if self._like_it is not None:
            not_counted = self._like_it.steps if self._ran is None else self._ran.steps + self._like_it.steps
            if not self._is_last(not_counted):
                self._begin(sampled=False)
                return
        self._like_it, self._expects_execution = None, True
        self._interception.begin()

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Note that an execution has ended that is not intercepted."""
        if self._like_it is not None and self._ran is None:
            self._steps.end_call()
            self._ran = self._like_it
            self.executions += 1
        self._call_of_batch("on_train_batch_end", *args, **kwargs)

    def on_test_begin(self, *args: Any, **kwargs: Any) -> None:
        """Charge a validation, its hooks aside."""
        self._end_training(before=VALIDATION)
        self._buckets.open(VALIDATION)
        self._call("on_test_begin", *args, **kwargs)

    def on_test_end(self, *args: Any, **kwargs: Any) -> None:
        """Go on with the validation: its data are closed after its last hook."""
        self._call("on_test_end", *args, **kwargs)
        self._buckets.open(VALIDATION)

    def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        """Close the steps, or the validation after them."""
        self._end_training()
        self._call("on_epoch_end", *args, **kwargs)
        self._buckets.open(IDLE)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Charge what `fit` does after its last hook, which is to wait for a checkpoint if there is one."""
        self._call("on_train_end", *args, **kwargs)
        self._buckets.open(CHECKPOINT if CHECKPOINT in self.names else IDLE)
        self._interception.undo()

    def _is_last(self, steps: int) -> bool:
        """Return whether an execution is known to be the last one of the epoch."""
        return self._known_steps is not None and self.steps_of_epoch + steps >= self._known_steps

    def _end_training(self, before: str = IDLE) -> None:
        """Wait for the devices at the end of an epoch's steps, unless Keras has, to read the metrics.

        What the host has done since, such as open the data of a validation, is charged to the bucket `before`.
        """
        ran, self._ran = self._ran, None
        if ran is not None:
            computing = not ran.is_done and (self._is_behind or not ran.execution.is_ready(ran.output))
            ran.execution.wait_for(ran.output)
            self._divide()
            in_graph = ran.in_graph and ran.steps == 1  # or else the last may have run fewer
            cycles = self._divided([self._steps.end_cycle(ran.steps, computing=computing)], [in_graph])
            idle, cycles[0, _IDLE] = float(cycles[0, _IDLE]), 0.0
            if self._is_behind and ran.is_steady:  # it has the time of all that were dispatched ahead
                self._costs.add(cycles, waits_for_all=True)
            self._buckets.add(IDLE, -idle)
            self._buckets.add(before, idle)
        if self._in_steps:
            self._in_steps = False
            self._buckets.skip(self._steps.ended)
            if ran is None:  # the data ended within a call
                self._buckets.bucket = INPUT
                self._buckets.open(IDLE)

    def _around(self, execution: Execution) -> Nest:
        """Run an execution, in a probe if one is due."""
        if not self._expects_execution:
            return execution.run()
        self._expects_execution = False
        steps, sampled = execution.steps, self.executions < _WARMUP
        if self._probe is not None and not self.executions and not self._probe.may_go_on_with(execution):
            self._close_probe()  # the last epoch ended in it, and this one begins with other data
        if self._probe is None and (execution.reads_in_graph or self._probes_all) and self.probes.may_begin:
            self._probe = self.probes.next(execution, *self._step_and_wait())
        probe = self._probe
        self._reads_in_graph = execution.reads_in_graph
        if probe is not None or execution.reads_in_graph:
            self._begin(sampled=sampled)
        try:
            result = self._run(execution, probe, sampled=sampled)
        finally:
            self._steps.end_call()
        output = execution.output_of(result)
        if sampled:
            execution.wait_for(output)
            self._steps.end_computing(steps)
        is_last = self._is_last(steps)
        if is_last and not sampled:
            execution.wait_for(output)  # Keras does so next, to read the metrics
            self._steps.end_call()
            self._steps.end_computing()
        is_steady = self.executions >= _WARMUP and probe is None
        in_graph = execution.reads_in_graph and probe is None
        self._ran = _Ran(execution, output, steps, in_graph, is_steady, is_last)
        self.executions += 1
        if in_graph and is_steady and not self.probes.may_begin and execution.is_settled():
            self._like_it = self._ran
            self._interception.undo()
        return result

    def _run(self, execution: Execution, probe: InputProbe | None, *, sampled: bool) -> Nest:
        if probe is None:
            return execution.run_reading(self._buckets.clock, lambda read: self._read(read, sampled))
        try:
            return probe.run(execution)
        finally:
            self._steps.read(probe.read_seconds, inside=True)
            if probe.done:
                self._close_probe()

    def _read(self, seconds: float, sampled: bool) -> None:
        """Note that batches have been read, of which the first come before the devices can go on."""
        inside = self._in_steps and self._ran is None
        self._steps.read(seconds, inside=inside)
        if not inside:
            self._begin(sampled=sampled)

    def _begin(self, *, sampled: bool) -> None:
        """End the cycle of the last execution: the devices can go on."""
        ran, self._ran = self._ran, None
        if ran is not None:
            computing = not ran.execution.is_ready(ran.output)
            self._is_behind = computing and not sampled
            if sampled and computing:
                ran.execution.wait_for(ran.output)
            noted = self._steps.end_cycle(ran.steps, computing=computing)
            self._noted.append((noted, ran.is_steady, ran.in_graph))
            self.steps_of_epoch += ran.steps
            if len(self._noted) >= _MOST_NOTED:
                self._divide()
        elif not self._in_steps:
            self._enter_steps()
        self._steps.begin_call(ends_cycle=ran is not None)

    def _enter_steps(self) -> None:
        """Begin the first execution of an epoch."""
        for bucket, seconds in zip(self.names, self._steps.drop(), strict=True):
            self._buckets.charge(bucket, seconds)
        self._buckets.open(IDLE)  # what it took to get a batch is in `input`
        self._in_steps, self._epoch_began, self._is_behind = True, self._buckets.clock(), False

    def _divide(self) -> None:
        """Add the cycles that have only been noted."""
        with self._dividing:
            taken = [self._noted.popleft() for _ in range(len(self._noted))]
            if taken:
                noted, is_steady, in_graph = map(list, zip(*taken, strict=True))
                steady = self._divided(noted, in_graph)[is_steady]
                self._costs.add(steady)
                self.recent = np.concatenate([self.recent, steady])[-self._window :]

    def _divided(self, noted: list[Noted], in_graph: list[bool]) -> Rows:
        cycles, of_hooks = divided(noted)
        self._all.add(cycles)
        self._of_callbacks += of_hooks.sum(axis=0)
        read_in_graph = cycles[in_graph]
        is_traced = read_in_graph[:, -1] > 0
        self._traced.add(read_in_graph[is_traced])
        self._in_graph.add(read_in_graph[~is_traced])
        return cycles

    def _step_and_wait(self) -> tuple[float, float]:
        """Return the seconds of a step, and those that it waits; 0 as long as they are not known."""
        costs = self.costs.per_step(self.compute_seconds)
        return (0.0, 0.0) if costs is None else (costs.total, costs.input)

    def _close_probe(self) -> None:
        if self._probe is not None:
            self.probes.end(self._probe)
            self._probe.close()
            self._probe = None


def _move(seconds: dict[str, float], bucket: str, part: float) -> None:
    """Move a part of `training` to another bucket."""
    part = min(max(part, 0.0), seconds[TRAINING])
    seconds[TRAINING] -= part
    seconds[bucket] += part
