"""Callbacks as Keras 2 had them: any file name, `period`, `epsilon`, `logs["lr"]`, and how `mode="auto"` chose."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tpu_ext.dropin.old_keras.arguments import rename, renamed
from keras_tpu_ext.dropin.patching import Function, add, replace, wrap
from keras_tpu_ext.dropin.report import mapped, means_old
from keras_tpu_ext.tools.migrate.tables.old_arguments import ARGUMENTS


def install() -> None:
    """Make old callbacks work."""
    all_of = "keras.callbacks"
    with_old_arguments = (f"{all_of}.{name}" for name in ("ReduceLROnPlateau", "TensorBoard", "BackupAndRestore"))
    wrap(
        {
            f"{all_of}.ModelCheckpoint.__init__": _checkpoint,
            f"{all_of}.ModelCheckpoint.on_epoch_end": _every_period,
            f"{all_of}.ModelCheckpoint._should_save_model": _unless_unknown,
            f"{all_of}.EarlyStopping.on_train_end": _restoring_if_stopped,
            f"{all_of}.ReduceLROnPlateau.on_epoch_end": _with_lr,
            f"{all_of}.LearningRateScheduler.__init__": _scheduler,
            f"{all_of}.LearningRateScheduler.on_epoch_end": _with_lr,
            "keras.src.callbacks.monitor_callback.MonitorCallback._set_monitor_op": _by_name,
            **{f"{of}.__init__": functools.partial(renamed, ARGUMENTS[of]) for of in with_old_arguments},
        }
    )
    replace({f"{all_of}.Callback.model": _settable})
    add(keras.callbacks.Callback, "validation_data", None)


def _settable(model: property) -> property:
    """Let a user's callback set `self.model`, which Keras 2 did in the same way."""
    return model.setter(lambda self, value: vars(self).update(_model=value))


def _checkpoint(init: Function, self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """Take any file name: `files` saves under it."""
    period = kwargs.pop("period", 1)
    rename({"options": "-", "load_weights_on_restart": "-"}, kwargs)
    weights_only = args[3] if len(args) > 3 else kwargs.get("save_weights_only", False)
    init(self, "checkpoint.weights.h5" if weights_only else "checkpoint.keras", *args, **kwargs)
    self.filepath = str(filepath)
    self._kte_period, self._kte_epochs = period, 0
    if period != 1:
        mapped("ModelCheckpoint(period=)", "a checkpoint after every so many epochs")


def _every_period(stock: Function, self: Any, epoch: int, logs: Any = None) -> None:
    self._kte_epochs += 1
    if self._kte_epochs >= self._kte_period:
        self._kte_epochs = 0
        stock(self, epoch, logs)


def _unless_unknown(stock: Function, self: Any, epoch: Any, batch: Any, logs: Any, filepath: Any) -> bool:
    """Save nothing if the best is asked for by a name that no metric has, as Keras 2; Keras 3 saves each time."""
    unknown = self.save_best_only and self.monitor not in (logs or {})
    if unknown and means_old(
        f"save_best_only with monitor={self.monitor!r}, which is not in {sorted(logs or {})}",
        "nothing is saved, as in Keras 2",
    ):
        return False
    return bool(stock(self, epoch, batch, logs, filepath))


def _restoring_if_stopped(stock: Function, self: Any, logs: Any = None) -> None:
    """Restore the best weights if training was stopped early, as Keras 2; Keras 3 does so in any case."""
    has_best = self.restore_best_weights and not self.stopped_epoch and self.best_weights is not None
    if has_best and means_old(
        "EarlyStopping(restore_best_weights=True) that has not stopped", "the last weights stay, as in Keras 2"
    ):
        self.best_weights = None
    stock(self, logs)


def _scheduler(init: Function, self: Any, schedule: Any, *args: Any, **kwargs: Any) -> None:
    """Take schedules that return a tensor or a NumPy number."""

    def as_float(*given: Any) -> float:
        rate = schedule(*given)
        if not isinstance(rate, (float, np.float32)):  # which Keras 3 takes
            mapped("a schedule that returns no float", "float(...)")
        return float(np.asarray(rate.numpy() if hasattr(rate, "numpy") else rate))

    init(self, as_float, *args, **kwargs)


def _with_lr(stock: Function, self: Any, epoch: int, logs: Any = None) -> None:
    """Write the rate under Keras 2's key, or that of Keras 3, as it was in the first epoch."""
    logs = {} if logs is None else logs
    stock(self, epoch, logs)
    if "_kte_old" not in vars(self):
        self._kte_old = means_old("the rate in logs and history", 'logs["lr"]')
    if self._kte_old and "learning_rate" in logs:
        logs["lr"] = logs.pop("learning_rate")


def _by_name(stock: Function, self: Any) -> None:
    """Choose between smaller and larger by the name that is monitored, as Keras 2 did, where `mode` is "auto"."""
    if self.mode != "auto":
        stock(self)
        return
    larger = _is_better_larger(self)
    delta, asked = self.min_delta, ops.greater if larger else ops.less
    try:
        stock(self)
    except ValueError:  # Keras 3 knows no direction
        self.monitor_op = None
    if self.monitor_op is None or (
        self.monitor_op is not asked
        and means_old(
            f'{type(self).__name__}(monitor={self.monitor!r}, mode="auto")',
            f"mode={'max' if larger else 'min'!r}, as in Keras 2",
        )
    ):
        self.monitor_op, self.min_delta = asked, abs(delta) if larger else -abs(delta)


def _is_better_larger(callback: Any) -> bool:
    name = callback.monitor
    if isinstance(callback, keras.callbacks.EarlyStopping):
        return bool(name.endswith(("acc", "accuracy", "auc")))
    if isinstance(callback, keras.callbacks.ReduceLROnPlateau):
        return "acc" in name
    return "acc" in name or bool(name.startswith("fmeasure"))
