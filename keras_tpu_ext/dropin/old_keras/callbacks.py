"""Callbacks as Keras 2 had them: any file name, `period`, `epsilon`, `logs["lr"]`, and how `mode="auto"` chose."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tpu_ext.dropin import patching
from keras_tpu_ext.dropin.old_keras.arguments import rename, renamed
from keras_tpu_ext.dropin.report import mapped, means_old
from keras_tpu_ext.tools.migrate.tables.old_arguments import ARGUMENTS

Method = Callable[..., Any]


def install() -> None:
    """Make old callbacks work."""
    all_of = keras.callbacks
    for cls, attribute, make in (
        (all_of.ModelCheckpoint, "__init__", _checkpoint),
        (all_of.ModelCheckpoint, "on_epoch_end", _every_period),
        (all_of.ModelCheckpoint, "_should_save_model", _unless_unknown),
        (all_of.EarlyStopping, "on_train_end", _restoring_if_stopped),
        (all_of.ReduceLROnPlateau, "on_epoch_end", _with_lr),
        (all_of.LearningRateScheduler, "__init__", _scheduler),
        (all_of.LearningRateScheduler, "on_epoch_end", _with_lr),
        (all_of.Callback, "model", _settable),
    ):
        patching.replace({f"keras.callbacks.{cls.__name__}.{attribute}": make})
    of_callbacks = (f"keras.callbacks.{name}" for name in ("ReduceLROnPlateau", "TensorBoard", "BackupAndRestore"))
    patching.wrap({f"{of}.__init__": functools.partial(renamed, ARGUMENTS[of]) for of in of_callbacks})
    patching.replace({"keras.src.callbacks.monitor_callback.MonitorCallback._set_monitor_op": _by_name})
    patching.add(all_of.Callback, "validation_data", None)


def _settable(model: property) -> property:
    """Let a user's callback set `self.model`, which Keras 2 did in the same way."""
    return model.setter(lambda self, value: vars(self).update(_model=value))


def _checkpoint(init: Method) -> Method:
    """Take any file name: `files` saves under it."""

    def initialize(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        period = kwargs.pop("period", 1)
        rename({"options": "-", "load_weights_on_restart": "-"}, kwargs)
        weights_only = args[3] if len(args) > 3 else kwargs.get("save_weights_only", False)
        accepted = "checkpoint.weights.h5" if weights_only else "checkpoint.keras"
        init(self, accepted, *args, **kwargs)
        self.filepath = str(filepath)
        self._kte_period, self._kte_epochs = period, 0
        if period != 1:
            mapped("ModelCheckpoint(period=)", "a checkpoint after every so many epochs")

    return initialize


def _every_period(stock: Method) -> Method:
    def on_epoch_end(self: Any, epoch: int, logs: Any = None) -> None:
        self._kte_epochs += 1
        if self._kte_epochs >= self._kte_period:
            self._kte_epochs = 0
            stock(self, epoch, logs)

    return on_epoch_end


def _unless_unknown(stock: Method) -> Method:
    """Save nothing if the best is asked for by a name that no metric has, as Keras 2; Keras 3 saves each time."""

    def should_save(self: Any, epoch: Any, batch: Any, logs: Any, filepath: Any) -> bool:
        unknown = self.save_best_only and self.monitor not in (logs or {})
        if unknown and means_old(
            f"save_best_only with monitor={self.monitor!r}, which is not in {sorted(logs or {})}",
            "nothing is saved, as in Keras 2",
        ):
            return False
        return bool(stock(self, epoch, batch, logs, filepath))

    return should_save


def _restoring_if_stopped(stock: Method) -> Method:
    """Restore the best weights if training was stopped early, as Keras 2; Keras 3 does so in any case."""

    def on_train_end(self: Any, logs: Any = None) -> None:
        has_best = self.restore_best_weights and not self.stopped_epoch and self.best_weights is not None
        if has_best and means_old(
            "EarlyStopping(restore_best_weights=True) that has not stopped", "the last weights stay, as in Keras 2"
        ):
            self.best_weights = None
        stock(self, logs)

    return on_train_end


def _scheduler(init: Method) -> Method:
    """Take schedules that return a tensor or a NumPy number."""

    def initialize(self: Any, schedule: Any, *args: Any, **kwargs: Any) -> None:
        def as_float(*given: Any) -> float:
            rate = schedule(*given)
            if not isinstance(rate, (float, np.float32)):  # which Keras 3 takes
                mapped("a schedule that returns no float", "float(...)")
            return float(np.asarray(rate.numpy() if hasattr(rate, "numpy") else rate))

        init(self, as_float, *args, **kwargs)

    return initialize


def _with_lr(stock: Method) -> Method:
    """Write the rate under Keras 2's key, or that of Keras 3, as it was in the first epoch."""

    def on_epoch_end(self: Any, epoch: int, logs: Any = None) -> None:
        logs = {} if logs is None else logs
        stock(self, epoch, logs)
        if "_kte_old" not in vars(self):
            self._kte_old = means_old("the rate in logs and history", 'logs["lr"]')
        if self._kte_old and "learning_rate" in logs:
            logs["lr"] = logs.pop("learning_rate")

    return on_epoch_end


def _by_name(stock: Method) -> Method:
    """Choose between smaller and larger by the name that is monitored, as Keras 2 did, where `mode` is "auto"."""

    def set_monitor_op(self: Any) -> None:
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

    return set_monitor_op


def _is_better_larger(callback: Any) -> bool:
    name = callback.monitor
    if isinstance(callback, keras.callbacks.EarlyStopping):
        return bool(name.endswith(("acc", "accuracy", "auc")))
    if isinstance(callback, keras.callbacks.ReduceLROnPlateau):
        return "acc" in name
    return "acc" in name or bool(name.startswith("fmeasure"))
