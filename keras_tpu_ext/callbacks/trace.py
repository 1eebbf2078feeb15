"""A profile of a few training steps, read at once, and what the time in it went to."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.executions import Execution, Interception
from keras_tpu_ext._runtime.common.layer_names import OTHER, LayerNames, Origin
from keras_tpu_ext._runtime.common.lowering import layer_names, roles_of
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext.callbacks._fit_observer import FitObserver, nothing_yet, say, warn
from keras_tpu_ext.callbacks._xplane import Device, Op, Span, read_xplane
from keras_tpu_ext.callbacks.trace_report import CATEGORIES, TraceOperation, TraceReport
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import ArgumentError

_STEP = "keras_tpu_ext_step"  # in the trace
_RUNNING = (
    "Trace: a profiler is running already, and there is one in a process. Leave out the other one, such as "
    "TensorBoard(profile_batch=...) or a Trace of the same steps, or trace other steps: Trace(steps=({0}, {1}))"
)
_SHORT = (
    "Trace: the first epoch ended after {done} steps, and steps {first} to {last} were to be traced. Write: {write}"
)
_UNREAD = "Trace: the trace in {directory} cannot be read ({error}). xprof may still show it"


class Trace(FitObserver):
    """Records a few steps with the framework's profiler, and prints what they spent their time on.

        Trace: 10 steps from step 10, 11.8 ms each
          compute 83.6 %, collectives 0.0 %, host 4.9 %, idle 11.5 %
          costliest operations          layer                    count  per step   part
          dot.2                         hidden, backward            10   3.05 ms 25.9 %

    The profiler is that of JAX or TensorFlow, without Python's own calls (before JAX 0.7 with them, which makes the
    traced steps slower). The trace stays in `directory` for xprof, TensorBoard or Perfetto. Before the first traced
    step, and after the last, it waits for the devices; from then on it costs nothing.

    Steps are those of the first epoch. The first execution, which compiles, is never traced, and others are traced as
    a whole. If several processes train together, each writes into a folder of its own, and reads its own trace; the
    chief prints. It has been run on CPUs only: how it reads the traces of a TPU and of a GPU follows the public
    schema, and is unchecked.

    Args:
        steps: The first step to trace, and the one after the last, counted from 0 at the start of `fit`. Defaults to
            `(10, 20)`.
        directory: Local folder for the trace. `None` (default) is a new temporary folder, which is told.

    Raises:
        ArgumentError: If `steps` is not a pair of growing integers from 1, or `directory` is a remote one. In `fit`,
            if a profiler is running when the first step is to be traced.

    Warns:
        KteWarning: If the first epoch ends before the last of the steps, with what to write.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(512, name="wide"), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        trace = kte.callbacks.Trace(steps=(10, 20))
        model.fit(np.ones((960, 64)), np.ones((960, 1)), verbose=0, callbacks=[trace])
        print(trace.report().seconds["compute"])
        ```
    """

    def __init__(self, *, steps: tuple[int, int] = (10, 20), directory: str | PathLike[str] | None = None) -> None:
        super().__init__()
        self.steps = _checked(steps)
        self.directory = None if directory is None else check.path(directory)
        if self.directory is not None and "://" in self.directory:
            raise check.argument_error("Trace", "directory", "a local folder", repr(directory), 'directory="logs"')
        self._report: TraceReport | None = None
        self._interception: Interception | None = None
        self._fitted: Any = None  # the model that is in `fit`
        self._is_profiling = False
        self._folder = ""
        self._done = self._began = 0  # steps of this fit, and those before the first traced one

    def __repr__(self) -> str:
        return f"Trace(steps={self.steps}, directory={self.directory!r})"

    def report(self) -> TraceReport:
        """Return what the trace of the last `fit` shows.

        Raises:
            NothingMeasuredError: If no step was traced.
        """
        if self._report is None:
            needs = f"a `fit` of more than {self.steps[0]} steps in its first epoch"
            raise nothing_yet("trace.report()", needs=needs)
        return self._report

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Reset."""
        self._report, self._done = None, 0
        self._fitted = self.model  # on JAX reading it is expensive
        self._interception = _runtime.probes.intercept_executions(self._fitted, self._intercept)

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Intercept the executions of the first epoch."""
        if self._interception is not None:
            self._interception.begin()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Warn if the epoch was too short."""
        if self._fitted is None:
            return
        if self._is_profiling:
            self._read()
        warn(self._too_short())
        self.end_fit()

    def _intercept(self, execution: Execution) -> Nest:
        """Run an execution; start the profiler before the first one to trace, and stop it after the last."""
        of_epoch = (self.params or {}).get("steps")
        steps = execution.steps if of_epoch is None else min(execution.steps, of_epoch - self._done)
        traces, (first, after) = self._is_profiling, self.steps
        with _runtime.probes.profiled_step(_STEP, self._done):
            result = execution.run()
            self._done += steps
            starts = not traces and self._done + steps > first and self._done != of_epoch
            if starts or self._done >= after or self._done == of_epoch:
                execution.wait_for(result)
        if starts:
            self._start()
        if traces and self._done >= after:
            self._read()
            self.end_fit()
        return result

    def _start(self) -> None:
        """Start the profiler, right after the execution before those to trace: a step begins with its callbacks."""
        self._folder = self._new_folder()
        try:
            _runtime.probes.start_profiler(self._folder)
        except RuntimeError as error:
            first, after = self.steps
            raise ArgumentError(_RUNNING.format(after, 2 * after - first)) from error
        self._is_profiling = True
        self._began = self._done
        with _runtime.probes.profiled_step(_STEP, self._done):
            pass  # marks the time

    def _new_folder(self) -> str:
        folder = tempfile.mkdtemp(prefix="keras_tpu_ext-trace-") if self.directory is None else self.directory
        alone = _runtime.devices.num_workers() == 1
        return folder if alone else os.path.join(folder, f"{socket.gethostname()}-{os.getpid()}")

    def _read(self) -> None:
        """Stop the profiler, and report what it recorded."""
        model, folder, traced = self._fitted, self._folder, self._done - self._began
        self._stop()
        if not traced:
            return
        try:
            files = Path(folder).glob("plugins/profile/*/*.xplane.pb")
            recording = read_xplane(max(files, key=os.path.getmtime).read_bytes(), _STEP)
            window = Span(recording.steps[0].begin, recording.steps[-1].end)
        except (OSError, ValueError, IndexError) as error:  # training goes on without
            warn(_UNREAD.format(directory=folder, error=error))
            return
        seconds, rows = divide(recording.devices, window, LayerNames(layer_names(model), roles_of(model)))
        step = sum(seconds.values()) / traced
        self._report = TraceReport((self._began, self._done), step, seconds, tuple(rows), folder)
        if _runtime.devices.is_chief():
            say(self, f"Trace: {self._report}")

    def _stop(self) -> None:
        if self._is_profiling:
            self._is_profiling = False
            _runtime.probes.stop_profiler()

    def end_fit(self) -> None:
        """Stop the profiler, let go of the model, and cost nothing from now on."""
        self._stop()
        if self._interception is not None:
            self._interception.undo()
        self._interception = self._fitted = None

    def _too_short(self) -> str:
        done, (first, after) = self._done, self.steps
        write = f"Trace(steps=({done // 2}, {done}))" if done > 1 else "fit(...) with more batches in an epoch"
        return _SHORT.format(done=done, first=first, last=after - 1, write=write)


def _checked(steps: Any) -> tuple[int, int]:
    try:
        first, after = steps
        found = check.integer("Trace", "steps", first, example=10), check.integer("Trace", "steps", after, example=20)
        if found[0] < found[1]:
            return found
    except (TypeError, ValueError):
        pass
    needed = "two integers, the first step from 1 on and the one after the last"
    raise check.argument_error("Trace", "steps", needed, repr(steps), "steps=(10, 20)") from None


# As XLA, NCCL and TensorFlow call them.
_COLLECTIVE = re.compile(
    r"all.?(reduce|gather|to.?all)|reduce.?scatter|collective|nccl|cross.?replica.?sum", re.IGNORECASE
)
_PICOSECONDS = 1e-12


class _Moment(NamedTuple):
    """A stretch of time in which nothing begins or ends."""

    seconds: float
    ops: list[Op]  # what runs on each line: the operation that began last there, which may be inside others
    in_program: bool  # whether a program runs


def divide(devices: list[Device], window: Span, names: LayerNames) -> tuple[dict[str, float], list[TraceOperation]]:
    """Return the seconds of each category in a window, and those of each operation, the costliest first.

    Both are means over the devices. Of operations that run at once each gets an equal part of that time, so that all
    of them together get the time in which any runs.
    """
    seconds = dict.fromkeys(CATEGORIES, 0.0)
    found: dict[tuple[str, Origin], list[float]] = {}  # how often, and how long
    for device in devices:
        for moment in _moments(device, window):
            seconds[_category(moment)] += moment.seconds / len(devices)
            for op in moment.ops:
                found.setdefault((op.name, _origin(op, names)), [0, 0.0])[1] += (
                    moment.seconds / len(moment.ops) / len(devices)
                )
        for op in (op for line in device.lines for op in line if window.begin <= op.span.begin < window.end):
            found.setdefault((op.name, _origin(op, names)), [0, 0.0])[0] += 1 / len(devices)
    whole = (window.end - window.begin) * _PICOSECONDS
    rows = [
        TraceOperation(name, origin.layer, origin.backward, round(count), took, took / whole)
        for (name, origin), (count, took) in found.items()
    ]
    return seconds, sorted(rows, key=lambda row: row.seconds, reverse=True)


def _category(moment: _Moment) -> str:
    if not moment.ops:
        return "idle" if moment.in_program else "host"
    return "collectives" if all(_COLLECTIVE.search(op.name) for op in moment.ops) else "compute"


def _origin(op: Op, names: LayerNames) -> Origin:
    """Return the layer of an operation, or of the first of those that were fused into it that has one."""
    origins = [names.resolve_name(stack) for stack in op.stacks]
    return next((origin for origin in origins if origin.layer != OTHER), Origin(OTHER))


def _moments(device: Device, window: Span) -> Iterator[_Moment]:
    """Yield the moments of a window, in order."""
    spans = [(op.span, line, op) for line, ops in enumerate(device.lines) for op in ops]
    program = len(device.lines), Op(Span(0, 0), "")
    changes: list[tuple[int, bool, int, Op]] = [(window.end, True, *program)]  # which ends the last moment
    for span, line, op in [*spans, *((span, *program) for span in device.programs)]:
        begin, end = max(span.begin, window.begin), min(span.end, window.end)
        if begin < end:
            changes += [(begin, True, line, op), (end, False, line, op)]
    stacks: list[list[Op]] = [[] for _ in range(len(device.lines) + 1)]
    now = window.begin
    for time, begins, line, op in sorted(changes, key=lambda change: change[:2]):
        if time > now:
            on_top = [stack[-1] for stack in stacks[:-1] if stack]
            yield _Moment((time - now) * _PICOSECONDS, on_top, in_program=bool(stacks[-1]))
            now = time
        stacks[line].append(op) if begins else stacks[line].remove(op)
