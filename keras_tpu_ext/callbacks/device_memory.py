"""The memory of the devices during `model.fit`."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, Literal

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.values import ArrayGroup, DeviceUse
from keras_tpu_ext.callbacks._fit_observer import FitObserver, nothing_yet, warn
from keras_tpu_ext.callbacks._plots import Plotted, plot_memory
from keras_tpu_ext.callbacks.device_memory_report import READINGS, DeviceMemoryReport, Growth
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import DeviceMemoryError
from keras_tpu_ext.output.display import memory_size, rounded

_KEYS = {"in_use": "device_memory/in_use_gib", "peak": "device_memory/peak_gib", "limit": "device_memory/limit_gib"}
_EVERY_SECONDS = 0.5
_COST = 0.01  # at most this part of the time goes to looking through the arrays
_MOST_RECORDS = 4096
_NOTHING = "DeviceMemory has nothing to show: nothing tells the memory of these devices. Leave the callback out"
_LEAK = (
    "DeviceMemory: device memory grows without end. In two epochs of {executions} executions there came {grown} more "
    "arrays of shape {shape} and dtype {dtype}{whose}: now {number}, {size}. Something keeps them, such as a list "
    "in a callback or in train_step. Write float(value) or np.asarray(value) for what you keep, or keep it no longer"
)


class DeviceMemory(FitObserver, Plotted):
    """Shows how much memory of the devices is in use, and tells which arrays grow without end.

    Puts `device_memory/in_use_gib` into `logs`, and `device_memory/peak_gib` and `device_memory/limit_gib` where they
    are known: of the fullest device of this process, at the end of each epoch, and after batches as it was at most
    half a second before. On a CPU no framework tells them: docs/callbacks.md says what is counted there.

    At the ends of epochs it counts the live arrays by role, shape and dtype, where that takes at most 1 % of the
    time. If a group has grown in two epochs in a row, by an array in every other execution or by 1 MiB an epoch, and
    Python's garbage collection does not free it, a warning tells the shape and the number. If several processes train
    together, only the chief warns, of its own devices. It has not run on a TPU or a GPU.

    Args:
        on_leak: `"warn"` (default), `"raise"` an error at the end of the epoch, or `"ignore"`.
        clock: Function that returns the time in seconds. Defaults to `time.perf_counter`.

    Raises:
        ArgumentError: If `on_leak` is another word, or `clock` is not callable.
        DeviceMemoryError: In `fit`, if arrays grow without end and `on_leak` is `"raise"`.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        memory = kte.callbacks.DeviceMemory()
        x, y = np.zeros((320, 4)), np.zeros((320, 1))
        history = model.fit(x, y, epochs=3, verbose=0, callbacks=[memory])
        print(history.history["device_memory/in_use_gib"])
        print(memory.report())
        memory.plot("memory.png")
        ```
    """

    def __init__(
        self,
        *,
        on_leak: Literal["warn", "raise", "ignore"] = "warn",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(clock)
        self.on_leak = check.one_of(type(self).__name__, "on_leak", on_leak, ("warn", "raise", "ignore"))
        self._report: DeviceMemoryReport | None = None
        self._logs: dict[str, float] = {}

    def __repr__(self) -> str:
        shown = ", ".join(f"{key.partition('/')[2]} {rounded(size)}" for key, size in self._logs.items())
        return f"<DeviceMemory: {shown or 'nothing measured yet'}>"

    def report(self) -> DeviceMemoryReport:
        """Return the memory at the last epoch's end of the last `fit`, the largest arrays, and what grew.

        Raises:
            NothingMeasuredError: If no epoch has ended.
        """
        if self._report is None:
            raise nothing_yet("memory.report()", needs="an epoch")
        return self._report

    def _figure(self) -> Any:
        """Draw the memory of the last `fit` over time, with its limit."""
        return plot_memory(self._records, self._epoch_ends, self.report().devices)

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Start reading, without what Python is about to free if that could hide a growth."""
        if (self.params or {}).get("epochs", 1) >= READINGS:
            gc.collect()
        self._read = _runtime.devices.memory_reader(self.model)
        self._began = self._next = self.clock()
        self._report, self._logs, self._growth = None, {}, Growth()
        self._peaks: dict[str, int] = {}
        self._records: list[tuple[float, DeviceUse]] = []
        self._epoch_ends: list[float] = []
        self._executions, self._look_from = 0, self._began
        self._leaks: list[str] = []
        if not self._readings():
            warn(_NOTHING)
        _runtime.progress.show_in_progress_bar(
            {key: None for key in _KEYS.values()} | {_KEYS["in_use"]: "memory_gib"}
        )

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Read the memory, at most twice a second; `self.model` would copy the state back on JAX."""
        self._executions += 1
        now = self.clock()
        if now >= self._next:
            self._readings()
            self._next = now + _EVERY_SECONDS

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Put the last reading into `logs`."""
        if logs is not None:
            logs.update(self._logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Read the memory, put it into `logs`, and look for arrays that grow."""
        readings = self._readings()
        self._epoch_ends.append(self.clock() - self._began)
        if logs is not None:
            logs.update(self._logs)
        arrays = self._report.arrays if self._report else ()
        began = self.clock()
        if began >= self._look_from:
            arrays = self._look()
            self._look_from = self.clock() + (self.clock() - began) / _COST
        self._report = DeviceMemoryReport(tuple(readings), arrays, tuple(self._leaks))

    def _readings(self) -> list[DeviceUse]:
        found = self._read()
        for number, use in enumerate(found):
            if use.peak is None:
                self._peaks[use.device] = max(use.in_use, self._peaks.get(use.device, 0))
                found[number] = use._replace(peak=self._peaks[use.device])
        if found:
            fullest = max(found, key=lambda use: use.in_use / (use.limit or 1))
            sizes = {key: getattr(fullest, name) for name, key in _KEYS.items()}
            self._logs = {key: size / 2**30 for key, size in sizes.items() if size is not None}
            self._records.append((self.clock() - self._began, fullest))
            if len(self._records) > _MOST_RECORDS:
                del self._records[1::2]
        return found

    def _look(self) -> tuple[ArrayGroup, ...]:
        """Return the live arrays, largest first, after telling which of them grow."""
        groups = _runtime.devices.live_arrays(self.model)
        self._growth.add(self._executions, groups)
        if self.on_leak != "ignore" and self._growth.leaks():
            gc.collect()  # what is in cycles is no leak
            groups = _runtime.devices.live_arrays(self.model)
            self._growth.add(self._executions, groups)
            leaks = self._growth.leaks()
            self._growth = Growth()
            self._tell(leaks)
        return tuple(sorted(groups, key=lambda one: -one.bytes))

    def _tell(self, leaks: list[tuple[ArrayGroup, int, int]]) -> None:
        told = [
            _LEAK.format(
                grown=grown,
                executions=executions,
                size=memory_size(group.bytes),
                whose="" if group.role == "other" else f" in this model's variables ({group.role})",
                **group._asdict(),
            )
            for group, grown, executions in leaks
        ]
        if told and self.on_leak == "raise":
            raise DeviceMemoryError(told[0])
        if told and not self._leaks:
            warn(told[0])
        self._leaks = told or self._leaks
