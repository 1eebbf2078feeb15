"""How fast `model.fit` really trains."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from os import PathLike
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.callbacks import _plot
from keras_tpu_ext.callbacks._arguments import whole_number
from keras_tpu_ext.callbacks._fit_meter import FitMeter
from keras_tpu_ext.callbacks._records import (
    BATCHES_PER_SEC,
    SAMPLES_PER_SEC,
    EpochThroughput,
    ThroughputRecord,
    as_logs,
)
from keras_tpu_ext.errors import ArgumentError

_UNCOUNTED = (
    "Throughput shows no samples per second: this model's train_step does not add its batch size to Keras's "
    "loss tracker (or has one example per step and replica, which looks the same), so examples cannot be "
    "counted. Write: Throughput(batch_size=<examples per step over all replicas>)"
)


class Throughput(_runtime.keras.callbacks.Callback):
    """Shows how many batches and samples per second a `fit` trains.

    Puts `throughput/batches_per_sec` and `throughput/samples_per_sec` into `logs`: after each batch the rate
    over the last `window` executions, at the end of an epoch the rate of the whole epoch. An execution is one
    call of the train function, which runs `steps_per_execution` batches.

    Put this callback **first** in the list: callbacks before it (a `CSVLogger`, say) do not see its keys, and
    one that evaluates the model sets the count of examples back. The progress bar and `History`, which Keras
    adds itself, always come after it, and show rates as they are, not averaged.

    What is left out: the first `warmup` executions of a `fit`, which compile; with them the last execution of
    its first epoch, because a short last batch is compiled for its own; validation inside `fit`; and whatever
    happens between epochs. Nothing else is left out, so a stall in the input or a slow callback shows. Where
    that leaves nothing of an epoch, its rates are NaN, so that the columns of a `CSVLogger` stay complete.
    The rates after each batch start two executions after the warm-up.

    Samples are counted by Keras's own loss tracker, short last batches included. It is read at epoch ends and
    every `window` executions, because reading waits for the device. A `train_step` of your own that does not
    keep that tracker needs `batch_size`; without it samples per second are left out, with a warning. Where several
    processes train together, all of them need the callback, because they read that tracker together.

    Args:
        window: Number of executions in the rolling rate. Defaults to 20.
        warmup: Number of executions left out at the start of each `fit`; 0 leaves nothing out, not the last
            execution of the first epoch either. Defaults to 1.
        batch_size: Examples per step over **all** replicas, or `None` to have them counted. A short last
            batch is still counted where the model can. Defaults to `None`.
        clock: Function that returns the time in seconds. Defaults to `time.perf_counter`.

    Raises:
        ArgumentError: If `window` or `batch_size` is not a whole number of at least 1, `warmup` not one of at
            least 0, or `clock` cannot be called.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        throughput = kte.callbacks.Throughput()
        x, y = np.zeros((320, 4)), np.zeros((320, 1))
        history = model.fit(x, y, epochs=3, verbose=0, callbacks=[throughput])
        print(history.history["throughput/samples_per_sec"])
        throughput.plot("throughput.png")
        ```
    """

    # The hooks only take the time and write into `logs`, so Keras on JAX may go on dispatching meanwhile.
    async_safe = True
    wants_every_batch = False  # it knows that an execution may have several

    def __init__(
        self,
        *,
        window: int = 20,
        warmup: int = 1,
        batch_size: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        self.window = whole_number(owner, "window", window, least=1, write=20)
        self.warmup = whole_number(owner, "warmup", warmup, least=0, write=1)
        self.batch_size = batch_size
        if batch_size is not None:
            self.batch_size = whole_number(owner, "batch_size", batch_size, least=1, write=128)
        if not callable(clock):
            raise ArgumentError(
                f"clock must be a function that returns seconds; it came as {clock!r}. "
                f"Write: {owner}(clock=time.perf_counter)"
            )
        self.clock = clock
        self._fitting = False
        self._start_fit(replicas=1)

    @property
    def records(self) -> tuple[ThroughputRecord, ...]:
        """The rolling rates of the last `fit`, thinned out evenly once there are thousands."""
        return tuple(self._meter.records.items)

    @property
    def epoch_records(self) -> tuple[EpochThroughput, ...]:
        """The rates of each epoch of the last `fit`."""
        return tuple(self._meter.epochs)

    def plot(self, path: str | PathLike[str] | None = None) -> Any:
        """Draw the rates of the last `fit` over time.

        Args:
            path: File to write the picture to, such as `"throughput.png"`, or `None` for none. Of several
                processes that train together only the chief writes it.

        Returns:
            The `matplotlib.figure.Figure`; no display is needed.

        Raises:
            NothingMeasuredError: If there is no rate yet.
            MissingExtraError: If matplotlib is not installed.
        """
        figure = _plot.draw(self.records, self.epoch_records, window=self.window)
        if path is not None and _runtime.is_chief():
            figure.savefig(path)
        return figure

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Start afresh: each `fit` may compile anew."""
        _runtime.show_as_they_are([BATCHES_PER_SEC, SAMPLES_PER_SEC])
        self._start_fit(replicas=_runtime.num_replicas(self.model))
        self._fitting = True

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Take no notice of an `evaluate` from here on."""
        self._fitting = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start the sums of the epoch."""
        self._meter.begin_epoch(epoch)
        self._examples_at_test: tuple[int, float | None] | None = None
        self._steps_before = _runtime.train_steps(self.model)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Take the time, the one thing that has to happen at each batch."""
        self._meter.begin(batch, self.clock(), self._read_examples)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Put the rolling rates into `logs`."""
        self._meter.executions.end(batch, self.clock())
        batches, samples = self._meter.rates()
        if logs is not None and batches is not None:
            logs.update(as_logs(batches, samples))

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Read the count of examples before validation sets it back."""
        if self._fitting:
            self._examples_at_test = (self._meter.executions.last_batch, self._read_examples())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Put the rates of the epoch into `logs`."""
        steps = self._steps_of_epoch()
        if self._examples_at_test and self._examples_at_test[0] == self._meter.executions.last_batch:
            examples = self._examples_at_test[1]
        else:
            examples = self._read_examples()
        batches, samples = self._meter.end_epoch(steps, examples)
        if logs is not None:
            logs.update(as_logs(batches, samples))
        self._warn_once()

    def _start_fit(self, replicas: int) -> None:
        self._meter = FitMeter(
            window=self.window,
            warmup=self.warmup,
            batch_size=self.batch_size,
            replicas=replicas,
            began=self.clock(),
        )
        self._warned = False

    def _read_examples(self) -> float | None:
        # On JAX even `self.model` has its price, copying the state back: only here, never at each batch.
        return _runtime.examples_seen(self.model)

    def _steps_of_epoch(self) -> int:
        """Return how many steps the epoch had, which its last execution may have run only in part.

        The optimizer's count is believed where it fits the batch index, and so is the number of steps that
        Keras announced. Steps that loss scaling skipped are missing in the first, so the larger one is right.
        """
        last, most = self._meter.executions.last_begin, self._meter.executions.last_batch + 1
        if most - last <= 1:
            return most
        announced = (self.params or {}).get("steps")
        taken = _runtime.train_steps(self.model)
        if taken is not None and self._steps_before is not None:
            taken -= self._steps_before
        return max((steps for steps in (announced, taken) if steps and last < steps <= most), default=most)

    def _warn_once(self) -> None:
        counter = self._meter.examples
        text = None
        if counter.misfit is not None:
            text = _misfit_text(self.batch_size, *counter.misfit)
        elif counter.per_step is None and self._meter.completed:
            text = _UNCOUNTED
        if text is not None and not self._warned and _runtime.is_chief():
            self._warned = True
            warnings.warn(text, stacklevel=2)


def _misfit_text(batch_size: int | None, examples: float, steps: int) -> str:
    return (
        f"Throughput(batch_size={batch_size}) does not fit: the model counted {examples:.0f} examples in an "
        f"epoch of {steps} steps, {examples / steps:.6g} per step. The rates shown use {batch_size}. "
        "batch_size is the number of examples per step over all replicas. Write: Throughput() to have them "
        "counted, and put it before any callback that evaluates the model"
    )
