"""The bottleneck of `model.fit`: the host that makes the batches, or the devices that train on them."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from os import PathLike
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.executions import Execution, Interception, Stage
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext.callbacks._input_probe import InputProbe, ProbedInput, StepMeter, probe_length
from keras_tpu_ext.callbacks._plots import plot_input
from keras_tpu_ext.callbacks.input_verdict import InputVerdict
from keras_tpu_ext.checks import arguments as check

_WAIT_FRACTION = "input/wait_fraction"
_WARMUP = 2  # executions, of which the first one compiles
_MIN_STEPS = 3  # timed on either side of a probe, in whole executions
_MAX_TIMED = 32  # executions timed on either side
_PROBE_SECONDS = 0.1  # for which a probe times either side, up to _MAX_PART
_MAX_PART = 0.01  # of an epoch's executions
_UPDATE_SECONDS = 0.05  # for which batches show the same value: computing it takes longer than all the rest
_MAX_COST = 0.005  # of the time since the last probe: a costlier one waits for a later epoch
_UNKNOWN = "HostBottleneck could not find out how long this model waits for data: {why}"
_NONE_AHEAD = (
    "its batches cannot be taken ahead of their turn, as where several processes train together. Leave it out here"
)
_GROWING = (
    'steps_per_execution="auto" was looking for its number until the end. Train for longer, or compile with a number'
)
_TOO_SHORT = (
    "an epoch had {executions} executions, which is too short to tell: it takes {needed}. Give `fit` more batches in "
    "an epoch, or choose a smaller steps_per_execution"
)


class HostBottleneck(_runtime.keras.callbacks.Callback):
    """Shows for what part of the training time the devices wait for data, and what better input could gain.

    Puts `input/wait_fraction` into `logs`, after batches and at the end of an epoch, once it is known (NaN at the end
    of earlier epochs): 0 if the devices never wait, 0.5 if they wait half of the time. It prints the verdict after
    the first epoch in which it is known, and again when a different verdict has held for two epochs:

        HostBottleneck: epoch 1: highly input-bound: 62% of the time waits for data. On its own the pipeline gives
        418 batches/s; the step could do 1102 batches/s, and does 416. Better input makes this at most 2.65 times as
        fast. Its costliest stage is ParallelMapV2, 2.4 ms for a batch.

    How it is measured: a few executions are timed as they come. Then the batches for as many executions are taken
    from the pipeline ahead of time, and these executions are timed on batches that are ready. Every batch is still
    trained on once and in order, by the same compiled step, so nothing has to be restored. What `fit` takes beyond
    the second time is waiting. The time between two hooks is not: Keras fetches a batch inside the train function.

    A probe runs once an epoch, with up to 1 % of its executions on either side, and at least three steps. The
    devices are idle while it takes batches, which costs time only if they do not wait for data anyway; an epoch has
    no probe if the last one cost more than 0.5 % of the time since. With fewer than 300 executions per epoch there
    is one probe in a `fit`. Epochs of fewer than 10 executions, or 6 of three steps or more, are too short to tell:
    there is no verdict, and a warning says so.

    The first executions of an epoch, validation and probes do not count. Neither does the longest of ten or more
    executions: a single pause comes from the process, and better input does not remove it. If more than a twentieth
    of an epoch is left out, the verdict says how many seconds, since `Throughput` counts them.

    If the devices are this machine's CPU cores, the pipeline runs on the same cores, and each slows the other down: a
    step then computes for longer while data is made, and this is not waiting. The verdict says so.

    It works for any Keras model. If several processes train together, it says that it cannot measure.

    Args:
        window: Number of executions over which the step time is averaged for the logs after a batch. Defaults to 20.
        verbose: Whether to print. Defaults to `True`.
        clock: Function that returns the time in seconds. Defaults to `time.perf_counter`.

    Raises:
        ArgumentError: If `window` is not an integer of at least 1, or `clock` is not callable.

    Warns:
        UserWarning: At the end of a `fit` in which nothing could be measured, with the reason.

    Example:
        ```python
        import time
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        class Batches(keras.utils.PyDataset):
            def __len__(self):
                return 100

            def __getitem__(self, index):
                time.sleep(0.01)  # as if decoding took so long
                return np.ones((32, 4)), np.ones((32, 1))

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        bottleneck = kte.callbacks.HostBottleneck()
        model.fit(Batches(), epochs=2, verbose=0, callbacks=[bottleneck])
        print(bottleneck.verdict)
        bottleneck.plot("bottleneck.png")
        ```
    """

    # The hooks after batches only write into `logs`, so Keras on JAX may go on dispatching meanwhile.
    async_safe = True
    wants_every_batch = False

    def __init__(
        self, *, window: int = 20, verbose: bool = True, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        super().__init__()
        caller = type(self).__name__
        self.window = check.integer(caller, "window", window, example=20)
        self.verbose = verbose
        self.clock = check.function(caller, "clock", clock, what="seconds", example="time.perf_counter")
        self._fitted: Any = None  # the model that is in `fit`
        self._shares_cores = False
        self._interception: Interception | None = None
        self._start()

    def _start(self) -> None:
        self._meter = StepMeter(self.window)
        self._found: list[ProbedInput] = []
        self._verdicts: list[tuple[int, InputVerdict]] = []
        self._printed = ""  # the verdict that was printed last
        self._probe: InputProbe | None = None
        self._failure = ""
        self._batch = 0
        self._is_announced = False
        self._was_growing = False
        self._executions_of_epoch = 0
        self._may_probe = True
        self._probed_at = 0.0
        self._only_times = False  # until the next epoch, if this one has no further probe
        self._shown: float | None = None
        self._is_shown, self._show_at = False, 0.0
        self._steps: int = 1

    @property
    def verdict(self) -> InputVerdict | None:
        """The last verdict on the input of the last `fit`; `None` if there is none yet."""
        return self._verdicts[-1][1] if self._verdicts else None

    @property
    def probes(self) -> tuple[ProbedInput, ...]:
        """The measurements of each probe of the last `fit`."""
        return tuple(self._found)

    def plot(self, path: str | PathLike[str] | None = None) -> Any:
        """Draw the parts of each epoch's step time in the last `fit`, and the rate of each side on its own.

        Args:
            path: File to write the picture to, such as `"bottleneck.png"`, or `None` for none. If several processes
                train together, only the chief writes it.

        Returns:
            The `matplotlib.figure.Figure`; no display is needed.

        Raises:
            NothingMeasuredError: If nothing is known yet.
            MissingExtraError: If matplotlib is not installed.
        """
        figure = plot_input(self._verdicts)
        if path is not None and _runtime.devices.is_chief():
            figure.savefig(path)
        return figure

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Reset."""
        _runtime.progress.show_in_progress_bar({_WAIT_FRACTION: "input_wait"})
        self._start()
        # On JAX even `self.model` is expensive, so it is read once.
        self._fitted = self.model
        self._shares_cores = _runtime.devices.device_name(self._fitted) == "cpu"

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Restore the train function, and warn if nothing is known."""
        self._restore()
        self._fitted = None
        if not self._verdicts and _runtime.devices.is_chief():
            needed = _WARMUP + probe_length(_least(self._steps))
            short = _TOO_SHORT.format(executions=self._executions_of_epoch, needed=needed)
            why = self._failure or (_GROWING if self._was_growing else short)
            warnings.warn(_UNKNOWN.format(why=why), stacklevel=2)

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Reset the sums of the epoch."""
        self._meter.start_epoch()
        cost = self._found[-1].cost_seconds if self._found else 0.0
        self._may_probe = cost <= _MAX_COST * (self.clock() - self._probed_at)
        self._only_times = self._is_shown = False

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Intercept the train function, which other callbacks may have replaced; or only take the time."""
        if self._only_times:
            now = self.clock()
            self._meter.begin(now, self._steps)
            if now >= self._show_at:
                self._show_at, self._is_shown = now + _UPDATE_SECONDS, False
            return
        self._batch, self._is_announced = batch, True
        if self._interception is None or not self._interception.is_in_place():
            self._restore()
            self._interception = _runtime.probes.intercept_executions(self._fitted, self._intercept)

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Put the rolling value into `logs`."""
        if not self._is_shown:
            self._shown, self._is_shown = self._wait_fraction(self._meter.rolling_average()), self._only_times
        if logs is not None and self._shown is not None:
            logs[_WAIT_FRACTION] = self._shown

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Put the value of the epoch into `logs`, and print a new verdict."""
        if self._probe is not None:
            self._probe.invalidate()
            self._close_probe()
        self._executions_of_epoch = self._meter.executions
        step_seconds = self._meter.epoch_average()
        if step_seconds is None and self._found:
            step_seconds = self._found[-1].step_seconds
        fraction = self._wait_fraction(step_seconds)
        if logs is not None:
            logs[_WAIT_FRACTION] = math.nan if fraction is None else fraction
        if fraction is None or step_seconds is None:
            return
        before, now = self.verdict, self._verdict_on(step_seconds, fraction)
        self._verdicts.append((epoch, now))
        is_new = before is None or (before.verdict == now.verdict != self._printed)
        if is_new:
            self._printed = now.verdict
        if is_new and self.verbose and _runtime.devices.is_chief():
            print(f"\nHostBottleneck: epoch {epoch + 1}: {now}")

    def _restore(self) -> None:
        if self._interception is not None:
            self._interception.undo()
            self._interception = None

    def _intercept(self, execution: Execution) -> Nest:
        """Run an execution, in a probe if one is due."""
        if not self._is_announced:  # left behind by a fit that was interrupted
            self._restore()
            return execution.run()
        self._is_announced = False
        if self._probe is None:
            self._probe = self._next_probe(execution)
        if self._probe is None:
            self._steps = execution.steps
            self._meter.begin(self.clock(), self._steps)
            if not self._was_growing and not self._may_still_probe():
                self._only_times = True  # batches then cost less
                self._restore()
            return execution.run()
        self._meter.pause(self.clock(), execution.steps)
        try:
            return self._probe.run(execution)
        finally:
            self._close_probe()

    def _may_still_probe(self) -> bool:
        """Whether this epoch may have another probe: if epochs are short, there is one in a `fit`."""
        has_enough = bool(self._found) and self._executions_of_epoch * _MAX_PART < _MIN_STEPS
        return self._may_probe and not self._failure and not has_enough

    def _close_probe(self) -> None:
        if self._probe is None or not self._probe.done:
            return
        if self._probe.result is not None:
            self._found.append(self._probe.result)
            self._probed_at = self.clock()
        elif self._probe.refused:
            self._failure = _NONE_AHEAD
        self._probe = None

    def _next_probe(self, execution: Execution) -> InputProbe | None:
        """Return the probe that begins with this execution, if one does."""
        self._was_growing = not execution.is_settled()
        if not self._should_probe(execution):
            return None
        self._may_probe = False
        return InputProbe(self._count(execution), self.clock)

    def _should_probe(self, execution: Execution) -> bool:
        if not self._may_still_probe() or self._was_growing or self._meter.executions < _WARMUP:
            return False
        steps = (self.params or {}).get("steps")
        remaining = None if steps is None else (steps - self._batch) // execution.steps
        return remaining is None or remaining >= probe_length(self._count(execution))

    def _count(self, execution: Execution) -> int:
        """Return the number of executions that a probe times on either side."""
        steps = (self.params or {}).get("steps")
        of_epoch = steps // execution.steps if steps else self._executions_of_epoch
        seconds = self._meter.rolling_average()
        wanted = _MAX_TIMED if not seconds else math.ceil(_PROBE_SECONDS / (seconds * execution.steps))
        return max(_least(execution.steps), min(wanted, _MAX_TIMED, int(of_epoch * _MAX_PART)))

    def _wait_fraction(self, step_seconds: float | None) -> float | None:
        if not self._found or not step_seconds:
            return None
        return 1 - min(self._found[-1].compute_seconds, step_seconds) / step_seconds

    def _verdict_on(self, step_seconds: float, fraction: float) -> InputVerdict:
        last = self._found[-1]
        stage = max(last.stages, key=lambda stage: stage.seconds, default=Stage("", 0.0))
        return InputVerdict(
            fraction,
            step_seconds,
            min(last.compute_seconds, step_seconds),
            last.pipeline_seconds,
            stage.name,
            stage.seconds,
            self._meter.left_out(step_seconds),
            self._shares_cores,
        )


def _least(steps: int) -> int:
    """Return the fewest executions of this many steps that a probe times on either side."""
    return math.ceil(_MIN_STEPS / steps)
