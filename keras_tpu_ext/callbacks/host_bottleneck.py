"""The bottleneck of `model.fit`: the host that makes the batches, or the devices that train on them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.executions import Stage
from keras_tpu_ext.callbacks._buckets import OF_CALLBACKS
from keras_tpu_ext.callbacks._fit_observer import LedgerUser, nothing_yet, say, warn
from keras_tpu_ext.callbacks._input_probe import ProbedInput
from keras_tpu_ext.callbacks._plots import LONG_EPOCHS, Plotted, plot_input
from keras_tpu_ext.callbacks._step_costs import StepCosts
from keras_tpu_ext.callbacks.input_verdict import InputVerdict
from keras_tpu_ext.checks import arguments as check

_WAIT_FRACTION = "input/wait_fraction"
_UPDATE_SECONDS = 0.05  # for which batches show the same value: computing it takes longer than all the rest
_WORTH_TELLING = 0.05  # of an epoch
_LEAST = 6  # executions that a probe needs, with those before it
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


class HostBottleneck(LedgerUser, Plotted):
    """Shows for what part of the training time the devices wait for data, and what better input could gain.

    Puts `input/wait_fraction` into `logs`, after batches and at the end of an epoch, once it is known (NaN at the end
    of earlier epochs): 0 if the devices never wait, 0.5 if they wait half of the time. It prints the verdict after
    the first epoch in which it is known, and again when a different verdict has held for two epochs:

        HostBottleneck: epoch 1: highly input-bound: 62% of the time waits for data.
          It does 416 batches/s, and 1102 if it never waited; the pipeline alone gives 418.
          Better input makes this at most 2.65 times as fast.
          Its costliest stage is ParallelMapV2, 2.4 ms for a batch.

    It also says what else a step takes: computing, the hooks of callbacks, the most expensive of them by name, and
    other Python of the host. These are the shares that `Goodput` charges; both use one measurement, in which batches
    of a few executions are taken ahead of their turn (docs/callbacks.md). Every batch is still trained on once and in
    order. On TensorFlow epochs of fewer than six executions are too short: there is no verdict, and a warning says
    so.

    The first three executions of an epoch, validation and probes do not count, and the longest of ten or more
    executions hardly ever, since better input does not remove a single pause. If the devices are this machine's CPU
    cores, the pipeline runs on the same cores, and each slows the other down; the verdict says so.

    It works for any Keras model. If several processes train together, it says that it cannot measure.

    Args:
        window: Number of executions over which the step time is averaged for the logs after a batch. Defaults to 20.
        verbose: Whether to print. Defaults to `True`.
        clock: Function that returns the time in seconds. Defaults to `time.perf_counter`.

    Raises:
        ArgumentError: If `window` is not an integer of at least 1, or `clock` is not callable.

    Warns:
        KteWarning: At the end of a `fit` in which nothing could be measured, with the reason.

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

    wants_probes = True

    def __init__(
        self, *, window: int = 20, verbose: bool = True, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        super().__init__(clock)
        self.window = check.integer(type(self).__name__, "window", window, example=20)
        self.verbose = verbose
        self._shares_cores = False
        self._start()

    def _start(self) -> None:
        self._verdicts: list[tuple[int, InputVerdict]] = []
        self._printed = ""  # the verdict that was printed last
        self._executions_of_epoch = 0
        self._shown: float | None = None
        self._show_at = 0.0

    def __repr__(self) -> str:
        return f"<HostBottleneck: {self.verdict.verdict if self.verdict else 'no verdict yet'}>"

    @property
    def verdict(self) -> InputVerdict | None:
        """The last verdict on the input of the last `fit`; `None` if there is none yet."""
        return self._verdicts[-1][1] if self._verdicts else None

    @property
    def probes(self) -> tuple[ProbedInput, ...]:
        """The measurements of each probe of the last `fit`."""
        return tuple(self._ledger.probes.found) if self._ledger else ()

    def report(self) -> InputVerdict:
        """Return the last verdict on the input of the last `fit`.

        Raises:
            NothingMeasuredError: If there is none yet.
        """
        if self.verdict is None:
            raise nothing_yet("bottleneck.report()", needs=LONG_EPOCHS)
        return self.verdict

    def _figure(self) -> Any:
        """Draw the parts of each epoch's step time in the last `fit`, and the rate of each side on its own."""
        return plot_input(self._verdicts)

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Reset."""
        _runtime.progress.show_in_progress_bar({_WAIT_FRACTION: "input_wait"})
        self._start()
        self._shares_cores = _runtime.devices.device_name(self.model) == "cpu"

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Warn if nothing is known."""
        if self._verdicts or self._ledger is None:
            return
        probes, executions = self._ledger.probes, self._executions_of_epoch
        needed = max(probes.needed, _LEAST)
        if probes.refused:
            why = _NONE_AHEAD
        elif probes.was_growing:
            why = _GROWING
        elif 0 < executions < needed:
            why = _TOO_SHORT.format(executions=executions, needed=needed)
        else:
            return  # nothing was trained, or it was interrupted
        warn(_UNKNOWN.format(why=why))

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Put the rolling value into `logs`."""
        now = self.clock()
        if now >= self._show_at and self._ledger is not None:
            self._show_at = now + _UPDATE_SECONDS
            verdict = self._verdict_on(StepCosts(self._ledger.recent))
            self._shown = None if verdict is None else verdict.wait_fraction
        if logs is not None and self._shown is not None:
            logs[_WAIT_FRACTION] = self._shown

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Put the value of the epoch into `logs`, and print a new verdict."""
        costs = self._ledger.costs if self._ledger else StepCosts()
        self._executions_of_epoch = self._ledger.executions if self._ledger else 0
        before, now = self.verdict, self._verdict_on(costs)
        if logs is not None:
            logs[_WAIT_FRACTION] = math.nan if now is None else now.wait_fraction
        if now is None:
            return
        self._verdicts.append((epoch, now))
        is_new = before is None or (before.verdict == now.verdict != self._printed)
        if is_new:
            self._printed = now.verdict
        if is_new and self.verbose and _runtime.devices.is_chief():
            say(self, f"HostBottleneck: epoch {epoch + 1}: {now}")

    def _verdict_on(self, costs: StepCosts) -> InputVerdict | None:
        """Return the verdict on some executions, or `None` if it is not known how long they wait."""
        ledger = self._ledger
        each = costs.per_step(ledger.compute_seconds) if ledger is not None and ledger.knows_input else None
        if ledger is None or each is None:
            return None
        step = each.total
        probe = ledger.probes.found[-1] if ledger.probes.found else ProbedInput(0.0, None, 0.0, ())
        stage = max(probe.stages, key=lambda stage: stage.seconds, default=Stage("", 0.0))
        left_out = ledger.left_out(step)
        return InputVerdict(
            wait_fraction=each.input / step,
            step_seconds=step,
            compute_seconds=each.training,
            pipeline_seconds=probe.pipeline_seconds,
            costliest_stage=stage.name,
            costliest_seconds=stage.seconds,
            left_out_seconds=left_out if left_out > _WORTH_TELLING * step * ledger.steps_of_epoch else 0.0,
            shares_cores=self._shares_cores,
            callbacks_seconds=each.callbacks,
            costliest_callback=ledger.costliest_callback.removeprefix(OF_CALLBACKS),
        )
