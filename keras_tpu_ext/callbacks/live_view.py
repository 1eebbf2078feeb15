"""One table of a running `fit`, with the time that it still takes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.callbacks._fit_observer import FitObserver, warn
from keras_tpu_ext.callbacks._live_table import Screen, cells, screen, view_of
from keras_tpu_ext.callbacks.auto_resume import AutoResume
from keras_tpu_ext.callbacks.run_log import plan_argument
from keras_tpu_ext.output.display import duration
from keras_tpu_ext.resume.leaving import seconds_of_process

_UPDATE_SECONDS = 0.25
_COST = 0.01  # at most this part of the time goes to updates
_NOT_LAST = (
    "LiveView does not see {keys}: the callback that puts them into `logs` comes after it. Write it last: "
    "callbacks=[..., live_view]"
)
_PROGRESS_BAR = "LiveView is disturbed by Keras's progress bar, which is shown as well. Write: fit(..., verbose=0)"


class LiveView(FitObserver):
    """Shows a running `fit` as one table: loss and metrics, rate, waiting, MFU, memory, goodput, and the time left.

    It has a row for each of the last epochs. In a notebook and in a terminal it is updated in place, at most four
    times a second and for 1 % of the time; a terminal needs the package rich, which Keras 3 has. Elsewhere, in the
    file that a job prints into for instance, it is one line for each epoch. If several processes train together, the
    chief shows it.

    It shows what other callbacks put into `logs`: `Throughput`, `HostBottleneck`, `Goodput`, `DeviceMemory` and
    `Recompilations`, each if it is there. So put it **last** in the list, and switch off Keras's progress bar by
    `fit(verbose=0)`; a warning says so where it is otherwise.

    The time left is that of the steps and epochs to come, at the pace of this epoch, with validation and saves; until
    these are known they are those of `plan`, or it is told as "at least". It is compared with the deadline of an
    `AutoResume` in the same `fit`, or with the hours of `plan`.

    Args:
        plan: What `kte.plan` returned, or `None` (default).
        clock: Function that returns the time in seconds. Defaults to `time.perf_counter`.

    Raises:
        ArgumentError: If `plan` or `clock` is something else.

    Warns:
        KteWarning: If Keras's progress bar is on, or a callback after this one puts keys into `logs`.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x, y = np.zeros((320, 4)), np.zeros((320, 1))
        shown = [kte.callbacks.Throughput(), kte.callbacks.Goodput(), kte.callbacks.LiveView()]
        model.fit(x, y, epochs=3, verbose=0, callbacks=shown)
        ```
    """

    def __init__(self, *, plan: Any = None, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(clock)
        self.plan = plan_argument(type(self).__name__, plan)
        self._screen: Screen | None = None

    def __repr__(self) -> str:
        return f"<LiveView: {'shown' if self._screen else 'not shown'}>"

    def begin_fit(self, callbacks: list[Any], began: float) -> None:
        """Note the deadline."""
        self._began = began
        self._deadline = next((one.deadline_s for one in callbacks if isinstance(one, AutoResume)), None)
        has_bar = any(isinstance(one, _runtime.keras.callbacks.ProgbarLogger) for one in callbacks)
        if has_bar:
            warn(_PROGRESS_BAR)

    def end_fit(self) -> None:
        """Leave the table as it is."""
        if self._screen is not None:
            self._screen.close()
            self._screen = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Begin a table."""
        self._screen = screen() if _runtime.devices.is_chief() else None
        params = self.params or {}
        self._left = TimeLeft(params.get("epochs") or 1, params.get("steps"), self._planned_beside_steps())
        self._epochs: dict[int, dict[str, str]] = {}
        self._seen: frozenset[str] | None = None  # keys at the end of an epoch
        self._tells, self._next = True, 0.0
        self._epoch = self._batch = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Begin a row."""
        self._tell_if_not_last()
        self._left.begin_epoch(epoch, self.clock())
        self._epoch, self._next = epoch, 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Update the table if it is time."""
        self._batch = batch
        now = self.clock()
        if now >= self._next:
            self._next = math.inf  # on JAX the hook of the next batch may run beside this one
            self._left.after_steps(now, batch + 1)
            of = f" of {self._left.steps}" if self._left.steps else ""
            self._epochs[self._epoch] = cells(logs or {})
            self._show(now, f", step {batch + 1}{of}")

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Note that the steps of the epoch are done."""
        if self._screen is not None:
            self._left.end_steps(self.clock(), self._batch + 1)

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Update what is below the table if it is time."""
        now = self.clock()
        if self._screen is not None and now >= self._next:
            self._next = math.inf
            self._show(now, f", validation, step {batch + 1}")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Complete the row."""
        now = self.clock()
        self._left.end_steps(now, self._batch + 1)
        self._logs, self._seen = logs or {}, frozenset(logs or ())
        self._epochs[epoch] = cells(self._logs)
        self._show(now, "", epoch_ended=True)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Leave the table as it is."""
        self._tell_if_not_last()
        self.end_fit()

    def _show(self, now: float, step: str, *, epoch_ended: bool = False) -> None:
        if self._screen is not None:
            is_over = epoch_ended and self._epoch + 1 == self._left.epochs
            place = f"epoch {self._epoch + 1} of {self._left.epochs}{step}"
            view = view_of(self._epochs, place, "" if is_over else self._time_left(now))
            self._screen.show(view, epoch_ended=epoch_ended)
        shown = self.clock()
        self._next = max(now + _UPDATE_SECONDS, shown + (shown - now) / _COST)

    def _planned_beside_steps(self) -> float | None:
        """Return how long an epoch takes beside its steps, by the plan; `None` without a plan."""
        plan = {} if self.plan is None else self.plan.to_dict()
        buckets = plan.get("buckets")
        return sum(buckets[one] for one in ("validation", "checkpoint")) / plan["epochs"] if buckets else None

    def _time_left(self, now: float) -> str:
        """Return the time that is left; empty if nothing is known yet."""
        left = self._left.seconds(now)
        if left is None:
            return ""
        at_least = "at least " if self._left.other is None else ""
        text = f"{at_least}{duration(left)} left" if left >= 1 else "less than 1 s left"
        until, hours = None, None if self.plan is None else self.plan.to_dict().get("hours")
        if self._deadline is not None:
            until, what = self._deadline - seconds_of_process(), "the deadline is in"
        elif hours is not None:
            until, what = hours * 3600 - (now - self._began), f"your {hours:g} h end in"
        if until is None:
            return text
        short = f": {duration(left - until)} short" if left > until else ""
        return f"{text}, {what} {duration(max(until, 0.0))}{short}"

    def _tell_if_not_last(self) -> None:
        """Warn if a callback after this one has put keys into `logs` at the end of the last epoch."""
        late = [] if self._seen is None else [key for key in self._logs if key not in self._seen]
        if late and self._tells:
            self._tells = False
            warn(_NOT_LAST.format(keys=", ".join(late)))


class TimeLeft:
    """Estimates the seconds that a `fit` still takes, from the steps of this epoch and what came between epochs.

    Args:
        epochs: Number of epochs of `fit`.
        steps: Number of steps of an epoch, or `None` if it is not known yet.
        other: Seconds of an epoch beside its steps, such as validation, as planned; or `None`.
    """

    def __init__(self, epochs: int, steps: int | None, other: float | None = None) -> None:
        self.epochs, self.steps = epochs, steps
        self.other = other  # as measured from the end of the first epoch on
        self._is_first = True  # epoch
        self._epoch = self._done = 0
        self._rate: float | None = None  # seconds of a step
        self._began: float | None = None
        self._first: tuple[float, int] | None = None  # when, and after how many steps
        self._ended: float | None = None

    def begin_epoch(self, epoch: int, now: float) -> None:
        """Note that an epoch begins."""
        if self._ended is not None and self._began is not None and self._first is not None:
            # In the first epoch the first step compiles; later it is the begin of an epoch that takes time.
            start = 0.0 if self._is_first else self._first[0] - self._began - (self._rate or 0.0)
            self.other, self._is_first = max(start, 0.0) + now - self._ended, False
        self._epoch, self._began, self._done = epoch, now, 0
        self._first = self._ended = None

    def after_steps(self, now: float, steps: int) -> None:
        """Note the steps of this epoch."""
        self._done = steps
        if self._first is None:
            self._first = now, steps
        elif steps > self._first[1]:
            self._rate = (now - self._first[0]) / (steps - self._first[1])

    def end_steps(self, now: float, steps: int) -> None:
        """Note that all steps of this epoch are done, and validation is next."""
        if self._ended is None:
            self.after_steps(now, steps)
            self._ended, self.steps = now, self.steps or steps

    def seconds(self, now: float) -> float | None:
        """Return the seconds that are left, at least if `other` is not known; `None` if nothing is known yet."""
        if self._rate is None or self.steps is None:
            return None
        other = self.other or 0.0
        further = (self.epochs - self._epoch - 1) * (self.steps * self._rate + other)
        spent = 0.0 if self._ended is None else now - self._ended
        return further + max(self.steps - self._done, 0) * self._rate + max(other - spent, 0.0)
