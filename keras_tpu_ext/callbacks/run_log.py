"""A file with what the callbacks of a training found."""

from __future__ import annotations

import dataclasses
import platform
import sys
import time
from collections.abc import Callable
from os import PathLike
from typing import Any

from keras_tpu_ext import _runtime, hardware
from keras_tpu_ext.callbacks._fit_observer import FitObserver, nothing_yet, warn
from keras_tpu_ext.callbacks.auto_resume import AutoResume, absolute, folder_argument
from keras_tpu_ext.callbacks.goodput import Goodput
from keras_tpu_ext.callbacks.run_report import RunReport
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import NothingMeasuredError
from keras_tpu_ext.machine.system import installed_version
from keras_tpu_ext.machine.versions import find_versions
from keras_tpu_ext.output.display import counted
from keras_tpu_ext.resume.run_file import RUN_FILE, as_plain, read_run, write_run
from keras_tpu_ext.resume.storage import folder_of

_COST = 0.01  # at most this part of the time goes to writing at the ends of epochs


class RunLog(FitObserver):
    """Keeps what the callbacks of a training find in one file, `run.json`, for `keras-tpu-ext report`.

    The file has the versions, the hardware, the epochs and steps of `fit`, the logs of each epoch, and for each other
    callback that has `report()` what that returns. It is written every `every_s` seconds, at the end of each epoch
    if writing takes at most 1 % of the time, and at the end of `fit`, also by an error. If several processes train
    together, the chief writes. Its place in the list of callbacks does not matter.

    With `AutoResume` and `Goodput` in the same `fit` it tells how much an interruption has cost: what was trained
    after the last checkpoint and has to be trained again becomes `lost`. After a kill that is known to `every_s`.
    Give each training a folder of its own, and the same one when it is started again.

    Args:
        directory: Folder for the file; or a URL such as `"gs://bucket/run"`, which needs fsspec and gcsfs.
        plan: What `kte.plan` returned, to be shown beside what came. Defaults to `None`.
        every_s: Seconds between two writes. Defaults to 10.
        clock: Function that returns the time in seconds. Defaults to `time.perf_counter`.

    Raises:
        ArgumentError: If an argument is invalid; from `fit`, if the folder has a `run.json` of something else.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        log = kte.callbacks.RunLog("run")
        x, y = np.zeros((320, 4)), np.zeros((320, 1))
        model.fit(x, y, epochs=3, verbose=0, callbacks=[kte.callbacks.Goodput(), log])
        print(log.report())  # and: keras-tpu-ext report run
        ```
    """

    def __init__(
        self,
        directory: str | PathLike[str],
        *,
        plan: Any = None,
        every_s: float = 10,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(clock)
        caller = type(self).__name__
        self.directory = folder_argument(caller, directory)
        self.plan = plan_argument(caller, plan)
        self.every_s = check.number(caller, "every_s", every_s, above=0, example=10)
        self._folder = folder_of(absolute(self.directory))
        self._run: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<RunLog: {self._folder.path_of(RUN_FILE)}>"

    def report(self) -> RunReport:
        """Return what is known of the last `fit`, or of the running one.

        Raises:
            NothingMeasuredError: If there was no `fit` yet.
        """
        if self._run is None:
            raise nothing_yet("log.report()")
        return RunReport(as_plain(self._now()))

    def begin_fit(self, callbacks: list[Any], began: float) -> None:
        """Tell `Goodput` after how many seconds the last start was interrupted."""
        self._others = [one for one in callbacks if not isinstance(one, RunLog)]
        self._resumes = [one for one in callbacks if isinstance(one, AutoResume)]
        self._began = began
        self._before, self._next, self._soonest, self._tells = 0.0, 0.0, 0.0, True
        self._history: list[tuple[int, float, dict[str, Any]]] = []
        self._run = {"format": 1, "versions": _versions(), "hardware": "", "arguments": {}, "started": time.time()}
        self._run |= {"finished": False, "returned": False, "problem": ""}
        earlier = read_run(self._folder) if _runtime.devices.is_chief() else None
        if earlier is None or earlier["finished"] or not self._resumes:
            return
        self._before = earlier["wall_seconds"]
        if not earlier["returned"]:
            for one in self._others:
                if isinstance(one, Goodput):
                    one.interrupted_after(self._before)

    def end_fit(self) -> None:
        """Write the end, which may be an error."""
        error = sys.exc_info()[1]
        if self._run is not None and not self._run["returned"] and error is not None:
            self._run["problem"] = f"{type(error).__name__}: {error}"
        self._write()

    def get_state(self) -> dict[str, Any]:
        """Return what `AutoResume` saves: the logs of the epochs until now."""
        return {"history": [[epoch, seconds, _numbers(logs)] for epoch, seconds, logs in self._history]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what `get_state` returned."""
        self._history = [(int(epoch), float(seconds), dict(logs)) for epoch, seconds, logs in state["history"]]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Note the hardware and what `fit` was called with."""
        if self._run is None:
            return
        model, params = self.model, self.params or {}
        name = _runtime.devices.device_name(model)
        devices = counted(_runtime.devices.num_devices(model), "device")
        self._run["hardware"] = f"{hardware.detect()}; trained on {devices} ({name})"
        self._run["arguments"] = {key: params.get(key) for key in ("epochs", "steps")}
        self._write()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Write if it is time."""
        if self.clock() >= self._next:
            self._write()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keep the logs, into which later callbacks may still write, and write the file."""
        self._history.append((epoch, self._wall_seconds(), {} if logs is None else logs))
        if self.clock() >= self._soonest:
            self._write()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Write the end."""
        if self._run is not None:
            self._run["returned"] = True
        self._write()

    def _write(self) -> None:
        began = self.clock()
        self._next = began + self.every_s
        if self._run is None or not _runtime.devices.is_chief():
            return
        try:
            write_run(self._folder, self._now())
        except OSError as error:  # a full disk must not end the training
            if self._tells:
                warn(f"RunLog could not write {self._folder.path_of(RUN_FILE)}: {error}")
            self._tells = False
        now = self.clock()
        self._soonest = now + (now - began) / _COST

    def _now(self) -> dict[str, Any]:
        run = dict(self._run or {})
        run["finished"] = run["returned"] and all(one.finished for one in self._resumes)
        run["wall_seconds"] = self._wall_seconds()
        run["history"] = [
            {"epoch": epoch, "wall_seconds": seconds, "logs": _numbers(logs)}
            for epoch, seconds, logs in self._history
        ]
        return {**run, "reports": _reports(self._others), "plan": self.plan and self.plan.to_dict()}

    def _wall_seconds(self) -> float:
        return self._before + self.clock() - self._began


def plan_argument(caller: str, plan: Any) -> Any:
    """Return a `PlanReport`, or `None`, which was given as `plan`."""
    if plan is not None and not hasattr(plan, "to_dict"):
        raise check.argument_error(caller, "plan", "what kte.plan returned, or None", repr(plan), "plan=None")
    return plan


def _numbers(logs: dict[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in list(logs.items()) if check.is_number(value)}


def _reports(callbacks: list[Any]) -> dict[str, Any]:
    """Return what the callbacks found, by the names of their classes."""
    found: dict[str, Any] = {}
    for one in callbacks:
        if not callable(getattr(one, "report", None)):
            continue
        name = type(one).__name__
        name = name if name not in found else f"{name} {sum(key.startswith(name) for key in found) + 1}"
        try:
            found[name] = one.report().to_dict()
        except NothingMeasuredError:
            continue
        except Exception as error:  # a user's own, that is something else
            found[name] = {"problem": f"{type(error).__name__}: {error}"}
    return found


def _versions() -> dict[str, str]:
    found = {name: one for name, one in dataclasses.asdict(find_versions()).items() if one}
    found.pop("tensorflow_package", None)
    own = installed_version("keras-tpu-ext") or "a checkout"
    return {"python": platform.python_version(), "keras_tpu_ext": own, **found}
