"""Losses and weights that are not finite, and spikes of the loss, in `model.fit`."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from typing import Literal

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.types import Model
from keras_tpu_ext._runtime.common.values import NotFinite, SavedVariable
from keras_tpu_ext.callbacks._fit_observer import FitObserver, nothing_yet, warn
from keras_tpu_ext.callbacks._spikes import Spike, SpikeFinder
from keras_tpu_ext.callbacks.watch_report import Cause, WatchReport, explained, explained_without_record
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import ArgumentError, NotFiniteError

_NOT_RESTORED = (
    'Watch: `on_not_finite="restore"` needs a model of this package, whose whole state is known. Write: with '
    'kte.strategy_scope(): around the lines that make and compile it, or on_not_finite="stop"'
)
_LATE = 16  # ends of executions that may come in another order: on JAX Keras calls the hook in several threads


class Watch(FitObserver):
    """Tells the first loss or weight that is not finite, with layer and step, and spikes of the loss.

    The step of a model of this package, in a `strategy_scope()` or a `TPUModel`, records the first step whose loss is
    not finite, also within an execution of several steps, and what came first: data, the output of a layer, the loss
    function, or weights, with their layers and whether the update before was the reason. For any other model, or with
    a `train_step` of your own, it tells the first execution with such a loss, and the weights that are not finite by
    then. docs/callbacks.md says what the step looks at, and when.

    It is told within a few executions, or at the end of the epoch if only weights are not finite. If several
    processes train together, all of them need the callback, it acts at the end of an epoch, and only the chief warns.
    A step that loss scaling skips because gradients overflowed is no fault.

    A spike is a loss, the mean of an execution, that is above the median of the last `window` ones by more than
    `threshold` standard deviations, estimated from the median absolute deviation (Hampel, 1974), of logarithms if all
    losses are positive. It is told once, up to 32 executions later.

    Args:
        on_not_finite: `"stop"` (default) warns and ends training, `"raise"` raises a `NotFiniteError`, and `"warn"`
            warns once. `"restore"` also ends training, and gives the model, its optimizer included, the state that
            it had after the last epoch in which all was finite, which is copied to the host there; in the first epoch
            there is none. Put it before callbacks that save.
        on_spike: `"warn"` (default), `"stop"`, which also ends training, or `None`.
        window: Number of executions that a loss is compared with, at least 20. Defaults to 100.
        threshold: Number of standard deviations. Defaults to 7.

    Raises:
        ArgumentError: If an argument is not one of these. In `fit`, if the state of a model that is not of this
            package is to be restored.
        NotFiniteError: In `fit`, with `on_not_finite="raise"`.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        with kte.strategy_scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="out")])
            model.compile("sgd", "mse")
        watch = kte.callbacks.Watch(on_not_finite="raise")
        x = np.random.default_rng(0).normal(size=(320, 4))
        model.fit(x, x.sum(axis=1), epochs=3, verbose=0, callbacks=[watch])
        print(watch.report())
        ```
    """

    def __init__(
        self,
        *,
        on_not_finite: Literal["stop", "raise", "warn", "restore"] = "stop",
        on_spike: Literal["warn", "stop"] | None = "warn",
        window: int = 100,
        threshold: float = 7.0,
    ) -> None:
        super().__init__()
        caller = type(self).__name__
        choices = ("stop", "raise", "warn", "restore")
        self.on_not_finite = check.one_of(caller, "on_not_finite", on_not_finite, choices)
        self.on_spike = check.one_of(caller, "on_spike", on_spike, ("warn", "stop", None))
        self.window = check.integer(caller, "window", window, minimum=20, example=100)
        self.threshold = check.number(caller, "threshold", threshold, above=0, what="a number", example=7)
        self._start_fit()

    def __repr__(self) -> str:
        return (
            f"Watch(on_not_finite={self.on_not_finite!r}, on_spike={self.on_spike!r}, window={self.window}, "
            f"threshold={self.threshold:g})"
        )

    def _start_fit(self, model: Model | None = None) -> None:
        # Not `self.model` in hooks of batches: on JAX that copies the state back.
        self._fitted = model
        self._read: Callable[[], NotFinite] | None = None
        self._found: WatchReport | None = None
        self._spikes: list[Spike] = []
        self._ends: list[tuple[int, float]] = []  # batch and loss of executions that were not looked at yet
        self._must_look = self._acts_in_epoch = False
        self._first_bad: int | None = None  # the batch of this epoch from which on the loss is not finite
        self._epoch = 0
        self._steps = self._batches = 0  # before this epoch, and in it
        self._starts: list[tuple[int, int]] = []  # each epoch, and the number of steps before it
        self._saved: Sequence[SavedVariable] = ()
        self._after_end = 1  # from the batch that the hook at the end of an execution names to the next one
        is_mean = model is None or _runtime.progress.counts_examples(model)
        self._spike_finder = SpikeFinder(window=self.window, threshold=self.threshold, is_mean=is_mean)
        if model is not None:
            self._read = _runtime.watches.watch_not_finite(model)
            # Several processes would not act before the same step.
            self._acts_in_epoch = _runtime.devices.num_workers() == 1
            if not _runtime.progress.end_names_last_batch():
                self._after_end = int(model.steps_per_execution)

    def report(self) -> WatchReport:
        """Return what was found in the last `fit`.

        Raises:
            NothingMeasuredError: If no batch has been trained on.
        """
        steps = self._steps + self._batches
        if not steps and self._found is None:
            raise nothing_yet("watch.report()")
        found = self._found or WatchReport(steps)
        return dataclasses.replace(found, steps=steps, spikes=tuple(self._spikes))

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Start watching."""
        self._start_fit(self.model)
        if self._read is None and self.on_not_finite == "restore":
            raise ArgumentError(_NOT_RESTORED)

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Note where the epoch begins."""
        self._epoch = epoch
        self._starts.append((epoch, self._steps))

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Look at the losses now and then, and at once if one is not finite."""
        if self._must_look or len(self._ends) >= 2 * _LATE:
            self._look()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Keep the loss."""
        loss = logs.get("loss", 0.0) if logs else 0.0
        self._ends.append((batch, loss))
        if not math.isfinite(loss):
            self._must_look = self._acts_in_epoch and self._found is None

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Look at the losses that are left and at the weights; keep the model's state, or restore it."""
        self._look(is_last=True)
        self._spike_finder.begin_epoch()
        self._steps, self._batches, self._first_bad = self._steps + self._batches, 0, None
        if self.on_not_finite != "restore":
            return
        if self._found is None:
            self._saved = _runtime.training_state.read(self.model, on_host=True)
        elif self._saved:
            _runtime.training_state.assign(self.model, self._saved)

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Stop watching."""
        _runtime.watches.unwatch(self.model)
        self._fitted, self._read, self._saved = None, None, ()

    def _look(self, *, is_last: bool = False) -> None:
        """Look at losses, and at the record if one is not finite."""
        ends = sorted(self._ends[:])
        del self._ends[: len(ends)]  # other threads only append
        taken = len(ends) - (0 if is_last or self._must_look else _LATE)
        self._ends[:0] = ends[taken:]
        # The last execution may have fewer steps than it announces.
        most = (self.params or {}).get("steps") or sys.maxsize
        for batch, loss in ends[:taken]:
            end = min(batch + self._after_end, most)
            spike = self._spike_finder.add(self._epoch, end, loss) if self.on_spike else None
            if spike is not None:
                self._spikes.append(spike)
                self._tell(str(spike), stops=self.on_spike == "stop")
            if self._first_bad is None and not math.isfinite(loss):
                self._first_bad = self._batches
            self._batches = end
        if (self._must_look or is_last) and self._found is None:
            self._must_look = False
            self._check(is_last=is_last)

    def _check(self, *, is_last: bool) -> None:
        """Tell the first loss or weight that is not finite, if there is one by now."""
        model = self.model  # on JAX this brings the state back, for what follows
        record = self._read() if self._read is not None else NotFinite(0)
        if is_last:
            self._batches = record.steps - self._steps if record.steps else self._batches
        if record.step is not None:
            cause, layers, text = explained(record)
            step = record.step - (cause in ("gradients", "update"))  # seen by the loss of the step after
            epoch, start = max(one for one in self._starts if one[1] <= step)
            self._act(epoch, step - start, step, cause, layers, text)
            return
        weights = _runtime.watches.not_finite_weights(model)
        has_loss = self._first_bad is not None
        if has_loss or weights:
            batch = self._batches if self._first_bad is None else self._first_bad
            found = explained_without_record(
                weights, len(model.weights), has_loss=has_loss, has_record=record.steps > 0
            )
            self._act(self._epoch, batch, None, *found)

    def _act(
        self, epoch: int, batch: int, step: int | None, cause: Cause, layers: tuple[str, ...], text: str
    ) -> None:
        where = f"epoch {epoch + 1}, batch {batch}" + ("" if step is None else f" (step {step})")
        self._found = WatchReport(self._steps, cause, step, epoch, batch, layers, f"{where}: {text}")
        if self.on_not_finite == "raise":
            raise NotFiniteError(f"Watch: {where}: {text}.")
        stops = self.on_not_finite != "warn"
        text = self._found.text + (". Training stops" if stops else "")
        if self.on_not_finite == "restore":
            restored = f"is restored as it was after epoch {self._epoch}"
            text += f", and the state of the model {restored if self._saved else 'was kept in no epoch before'}"
        self._tell(text, stops=stops)

    def _tell(self, text: str, *, stops: bool) -> None:
        if stops and self._fitted is not None:
            self._fitted.stop_training = True
        warn(f"Watch: {text}.")
