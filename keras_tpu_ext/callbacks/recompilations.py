"""Recompilations during `model.fit`: how often, how long, and why."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.executions import CacheUse, Execution, Interception, Step, TrainFunction
from keras_tpu_ext._runtime.common.types import Model, Nest
from keras_tpu_ext.callbacks._compile_reason import (
    ArrayType,
    Reason,
    Types,
    reason_in_batches,
    reason_in_constants,
    types_of,
)
from keras_tpu_ext.callbacks._fit_observer import FitObserver, nothing_yet, warn
from keras_tpu_ext.callbacks.recompilations_report import Compilation, RecompilationsReport
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import RecompilationError

_COUNT, _SECONDS = "recompilations/count", "recompilations/seconds"
_MOST_WARNINGS = 5  # in a `fit`
_MOST_TIMES = 1000  # of executions, for their median
_MOST_OF_EPOCH = 20  # executions of an epoch that are watched where a graph reads its batches
_FIRST = Reason("", "")


class Recompilations(FitObserver):
    """Tells when `fit` compiles its train or evaluate step again, how long that took, and why.

    A step is compiled for the shapes and dtypes of a batch, and with the Python values that it reads. The first time
    is expected. Each further one costs as much, often minutes on a TPU, and most have a cure: a short last batch is
    padded or dropped, a value that changes becomes a variable. A warning says which argument or constant changed:

        Recompilations: the train step was compiled again in epoch 1 at batch 4, in 0.413 s: x, y: rows 8 to 5. Give
        every batch 8 rows: kte.data.pad_batches(dataset, 8), or dataset.batch(8, drop_remainder=True)

    The batch is compared with the nearest one seen before, also in earlier calls of `fit` of the same model with this
    object. If batches are equal, the numbers, strings and tuples are compared that the layers have as attributes. A
    change anywhere else, in a global variable for instance, cannot be seen, and the warning says so. A step that is
    compiled anew because `compile` was called before this `fit` is no recompilation.

    Puts `recompilations/count` and `recompilations/seconds`, both since the `fit` began, into `logs` at the end of an
    epoch. On JAX the seconds are those of tracing, lowering and compiling in the thread of `fit`, or of reading a
    program from a cache; the report has the cache's hits and misses. On TensorFlow they are the time of the execution
    that traced beyond the median of the others; until there are others, only the time of tracing.

    With `jit_compile=True` TensorFlow compiles a graph for each shape, and tells nobody. A short last batch is then
    found by the number of examples in the epoch, and by the time of its execution; **any other change of shape is not
    found there**. If several processes train together, all of them need the callback. Unchecked on a TPU.

    Args:
        on_recompile: `"warn"` (default) gives a warning for each of the first five in a `fit`; `"raise"` ends the
            `fit` after the execution that was compiled again; `"ignore"` only counts.
        clock: Function that returns the time in seconds. Defaults to `time.perf_counter`.

    Raises:
        ArgumentError: If `on_recompile` is another word, or `clock` is not callable.
        RecompilationError: In `fit`, with `on_recompile="raise"`.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        recompilations = kte.callbacks.Recompilations(on_recompile="ignore")
        x, y = np.zeros((37, 4)), np.zeros((37, 1))
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[recompilations])
        print(recompilations.report())
        ```
    """

    def __init__(
        self,
        *,
        on_recompile: Literal["warn", "raise", "ignore"] = "warn",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(clock)
        caller = type(self).__name__
        self.on_recompile = check.one_of(caller, "on_recompile", on_recompile, ("warn", "raise", "ignore"))
        self._is_fitting = False
        # With what the framework tells of their seconds, and those of the whole execution.
        self._found: list[tuple[Compilation, float]] = []
        self._untold: list[tuple[Compilation, float]] = []
        self._steps: dict[Step, _WatchedStep] = {}

    def __repr__(self) -> str:
        return f'Recompilations(on_recompile="{self.on_recompile}")'

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if name != "_watch"}
        return {**kept, "_steps": {}, "_found": [], "_untold": []}  # a copy has seen nothing

    def report(self) -> RecompilationsReport:
        """Return what was compiled in the last `fit`.

        Raises:
            NothingMeasuredError: If no step has run.
        """
        if not any(step.runs for step in self._steps.values()):
            raise nothing_yet("recompilations.report()")
        return RecompilationsReport(tuple(self._known(*found) for found in self._found), *self._cache)

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Reset, but for what the steps of this model were compiled for."""
        _runtime.progress.show_in_progress_bar({_COUNT: None, _SECONDS: None})
        model = self.model  # on JAX even this is expensive, so it is read once
        if not self._steps or self._steps["train"].model is not model:
            self._steps = {"train": _WatchedStep(model), "test": _WatchedStep(model)}
            for name, step in self._steps.items():
                around = functools.partial(self._run, name, step)
                step.interception = _runtime.probes.intercept_executions(model, around, name)
        for step in self._steps.values():
            step.runs, step.times = 0, deque(maxlen=_MOST_TIMES)
        self._watch = _runtime.probes.watch_compiles()
        self._found, self._untold, self._told = [], [], 0
        self._cache, self._epoch, self._is_fitting = CacheUse(), 0, True

    def end_fit(self) -> None:
        """Restore the functions of the model."""
        for step in self._steps.values():
            step.interception.undo()
        self._cache = self._watch.cache
        self._is_fitting = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Note the epoch."""
        self._epoch = epoch
        self._steps["train"].begin_epoch()

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Intercept the train function, which other callbacks may have replaced."""
        self._begin("train", batch)

    def on_test_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Intercept the test function, if this is a validation in `fit`."""
        if self._is_fitting:
            self._begin("test", batch)

    def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
        """Tell of the last execution of training."""
        if self._is_fitting:
            self._look_for_short_batch("train")
            self._tell()
            self._steps["test"].begin_epoch()

    def on_test_end(self, logs: dict[str, float] | None = None) -> None:
        """Tell of the last execution of a validation."""
        if self._is_fitting:
            self._look_for_short_batch("test")

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Put the values into `logs`, and tell of the last execution."""
        self._look_for_short_batch("train")
        if logs is not None:
            again = [self._known(found, took).seconds for found, took in self._found if found.reason]
            logs.update({_COUNT: len(again), _SECONDS: sum(again)})
        self._tell()

    def _begin(self, name: Step, batch: int) -> None:
        step = self._steps[name]
        step.batch = batch
        if self._untold:
            self._tell()
        if getattr(step.model, f"{name}_function") is not step.known:
            step.interception.begin()

    def _run(self, name: Step, step: _WatchedStep, execution: Execution) -> Nest:
        """Run an execution, and look at it if it compiled."""
        began = self.clock()
        result, compiled = execution.run_watched(self._watch)
        took = self.clock() - began
        if compiled or not step.runs:
            constants = _runtime.models.constants_of(step.model)
            reason = step.see(execution.function, [types_of(batch) for batch in execution.batches()], constants)
            if compiled:
                self._add(name, compiled, took, reason)
            if self._compiles_unseen(step):
                step.count_rows(_runtime.progress.examples_seen(step.model), execution.steps)
            step.looked_at = step.runs + 1
        else:
            step.times.append(took)
        step.runs += 1
        step.of_epoch += 1
        if step.of_epoch >= _MOST_OF_EPOCH and self._is_one_graph(name, step.model):
            step.interception.undo()
            step.known = getattr(step.model, f"{name}_function")
        return result

    def _is_one_graph(self, name: Step, model: Model) -> bool:
        """Return whether each execution of an epoch is the same graph, traced again only if it is made again."""
        maker = getattr(type(model), f"make_{name}_function")
        is_users = maker.__module__.partition(".")[0] not in ("keras", "tf_keras", "keras_tpu_ext")
        is_compiled = self._watch.sees_compiler or getattr(model, "jit_compile", False)
        return not (is_users or is_compiled or model.run_eagerly)

    def _compiles_unseen(self, step: _WatchedStep) -> bool:
        """Return whether XLA may compile a graph again, which no watch sees."""
        return not self._watch.sees_compiler and bool(getattr(step.model, "jit_compile", False))

    def _look_for_short_batch(self, name: Step) -> None:
        step = self._steps[name]
        if step.looked_at == step.runs or not self._compiles_unseen(step):
            return
        step.looked_at = step.runs
        if step.times[-1] > 2 * statistics.median_low(step.times):
            reason = step.see_short_batch(_runtime.progress.examples_seen(step.model))
            if reason is not None:
                self._add(name, 0.0, step.times[-1], reason)

    def _add(self, name: Step, seconds: float, took: float, reason: Reason) -> None:
        found = Compilation(name, self._epoch, self._steps[name].batch, seconds, *reason), took
        self._found.append(found)
        self._untold += [found] if reason.text else []

    def _known(self, found: Compilation, took: float) -> Compilation:
        """Return what is known by now: on TensorFlow the usual time is known later."""
        times = self._steps[found.step].times
        if not times or self._watch.sees_compiler:
            return found
        return dataclasses.replace(found, seconds=max(found.seconds, took - statistics.median_low(times)))

    def _tell(self) -> None:
        untold, self._untold = self._untold, []
        if self.on_recompile == "ignore":
            return
        for found in untold:
            text = f"Recompilations: {self._known(*found)}"
            if self.on_recompile == "raise":
                raise RecompilationError(text)
            self._told += 1
            if self._told <= _MOST_WARNINGS:
                warn(text)


class _WatchedStep:
    """The train or the test step: what it was compiled for, and the interception of its executions."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.interception: Interception
        self.batch = self.runs = self.looked_at = self.of_epoch = 0
        self.known: TrainFunction | None = None  # which needs no interception until the end of the epoch
        self.times: deque[float] = deque(maxlen=_MOST_TIMES)  # of executions that did not compile
        self._function: TrainFunction | None = None
        self._batches: list[Types] = []
        self._constants: dict[str, object] = {}
        self._rows, self._steps = 0.0, 1  # of a full batch, if they are counted, and of an execution

    def begin_epoch(self) -> None:
        """Note that its batches come from another iterator from now on."""
        self.known, self.of_epoch = None, 0

    def see(self, function: TrainFunction, batches: list[Types], constants: dict[str, object]) -> Reason:
        """Remember an execution; return why it compiled if it did, and `_FIRST` if that was to be expected."""
        made_again = self._function is not function
        if made_again and not self.runs:  # nothing ran before, or `compile` was called between two calls of `fit`
            self._batches, reason = [], _FIRST
        else:
            reason = reason_in_batches(batches, self._batches) or reason_in_constants(
                self._constants, constants, made_again=made_again
            )
        self._function, self._constants = function, constants
        self._batches += [batch for batch in batches if batch not in self._batches]
        return reason

    def count_rows(self, examples: float | None, steps: int) -> None:
        """Note the number of examples in the first execution, of full batches."""
        if not self.runs:
            self._rows, self._steps = (examples or 0.0) / steps, steps
            self._batches += [_with_rows(batch, int(self._rows)) for batch in self._batches[-1:] if self._rows]

    def see_short_batch(self, examples: float | None) -> Reason | None:
        """Return why the last execution of an epoch compiled, if its last batch was the only one with fewer rows."""
        full, rows = divmod(examples or 0.0, self._rows or 1.0)
        if not rows or not self.batch <= full < self.batch + self._steps:
            return None
        short = [_with_rows(batch, int(rows)) for batch in self._batches if None in next(iter(batch.values())).shape]
        reason = reason_in_batches(short, self._batches)
        self._batches += [batch for batch in short if batch not in self._batches]
        return reason


def _with_rows(batch: Types, rows: int) -> Types:
    """Return a batch with a number of rows where it had any."""
    return {name: ArrayType((rows, *one.shape[1:]), one.dtype) for name, one in batch.items() if one.shape}
