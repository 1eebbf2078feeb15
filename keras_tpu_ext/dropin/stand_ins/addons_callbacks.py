"""Callbacks of TensorFlow Addons 0.23, on Keras 3."""

from __future__ import annotations

import datetime
import importlib
import time
from typing import Any

import keras

from keras_tpu_ext.dropin.stand_ins.addons_averaging import AveragedOptimizerWrapper


class TimeStopping(keras.callbacks.Callback):
    """Stops after the epoch in which the time is over.

    Args:
        seconds: The time.
        verbose: Whether it is told.
    """

    def __init__(self, seconds: int = 86400, verbose: int = 0) -> None:
        super().__init__()
        self.seconds, self.verbose = seconds, verbose
        self.stopped_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin."""
        self.stopping_time = time.time() + self.seconds

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End an epoch."""
        if time.time() >= self.stopping_time:
            self.model.stop_training = True
            self.stopped_epoch = epoch

    def on_train_end(self, logs: Any = None) -> None:
        """End."""
        if self.stopped_epoch is not None and self.verbose > 0:
            after = datetime.timedelta(seconds=self.seconds)
            print(f"Timed stopping at epoch {self.stopped_epoch + 1} after training for {after}")


class AverageModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves a model with the averages of its weights.

    Args:
        update_weights: Whether the model keeps them.
        filepath: Where it is saved.
        monitor: What says which epoch is best.
        verbose: Whether it is told.
        save_best_only: Whether only the best epoch is saved.
        save_weights_only: Whether the weights are saved alone.
        mode: "auto", "min" or "max".
        save_freq: "epoch" or a number of batches.
        kwargs: Those of `ModelCheckpoint`.
    """

    def __init__(
        self,
        update_weights: bool,
        filepath: str,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        **kwargs: Any,
    ) -> None:
        self.update_weights = update_weights
        super().__init__(filepath, monitor, verbose, save_best_only, save_weights_only, mode, save_freq, **kwargs)

    def set_model(self, model: Any) -> None:
        """Take the model, whose optimizer needs averages."""
        super().set_model(model)
        if not isinstance(self._averaging(), AveragedOptimizerWrapper):
            raise TypeError("AverageModelCheckpoint is only used when training with MovingAverage or SWA")

    def _averaging(self) -> Any:
        return getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        before = None if self.update_weights else self.model.get_weights()
        self._averaging().assign_average_vars(self.model.trainable_variables)
        super()._save_model(*args, **kwargs)
        if before is not None:
            self.model.set_weights(before)


class TQDMProgressBar(keras.callbacks.Callback):
    """Bars of the package tqdm: one of epochs, and one of each epoch's batches.

    Args:
        metrics_separator: What stands between metrics.
        overall_bar_format: tqdm's format of the bar of epochs.
        epoch_bar_format: tqdm's format of an epoch's bar.
        metrics_format: How a metric is written.
        update_per_second: How often a bar is drawn, at most.
        leave_epoch_progress: Whether an epoch's bar stays.
        leave_overall_progress: Whether the bar of epochs stays.
        show_epoch_progress: Whether there are bars of epochs.
        show_overall_progress: Whether there is a bar of all epochs.
    """

    def __init__(
        self,
        metrics_separator: str = " - ",
        overall_bar_format: str = "{l_bar}{bar} {n_fmt}/{total_fmt} ETA: {remaining}s,  {rate_fmt}{postfix}",
        epoch_bar_format: str = "{n_fmt}/{total_fmt}{bar} ETA: {remaining}s - {desc}",
        metrics_format: str = "{name}: {value:0.4f}",
        update_per_second: int = 10,
        leave_epoch_progress: bool = True,
        leave_overall_progress: bool = True,
        show_epoch_progress: bool = True,
        show_overall_progress: bool = True,
    ) -> None:
        super().__init__()
        self._tqdm, self._interval = importlib.import_module("tqdm.auto").tqdm, 1 / update_per_second
        self._separator, self._format = metrics_separator, metrics_format
        self._overall = {"bar_format": overall_bar_format, "leave": leave_overall_progress, "unit": "epochs"}
        self._of_epoch = {"bar_format": epoch_bar_format, "leave": leave_epoch_progress, "unit": "steps"}
        self._shows_overall, self._shows_epochs = show_overall_progress, show_epoch_progress
        self._all: Any = None
        self._bar: Any = None

    def _open(self, **arguments: Any) -> None:
        total = self.params.get("steps")
        bar = {**self._of_epoch, "total": total, "dynamic_ncols": True, "mininterval": self._interval, **arguments}
        self._bar = self._tqdm(**bar) if self._shows_epochs else None

    def _close(self, logs: Any) -> None:
        if self._bar is not None:
            pairs = [self._format.format(name=name, value=value) for name, value in (logs or {}).items()]
            self._bar.set_description_str(self._separator.join(pairs))
            self._bar.close()
        self._bar = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin."""
        if self._shows_overall:
            self._all = self._tqdm(desc="Training", total=self.params["epochs"], dynamic_ncols=True, **self._overall)

    def on_train_end(self, logs: Any = None) -> None:
        """End."""
        if self._all is not None:
            self._all.close()
        self._all = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin an epoch."""
        if self._shows_epochs:
            print(f"Epoch {epoch + 1}/{self.params['epochs']}")
        self._open()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End an epoch."""
        self._close(logs)
        if self._all is not None:
            self._all.update(1)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(batch + 1 - self._bar.n)

    def on_test_begin(self, logs: Any = None) -> None:
        """Begin an evaluation."""
        if self._bar is None:
            self._open(desc="Evaluating")
            self._evaluates = True

    _evaluates = False

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Move the bar."""
        if self._evaluates:
            self.on_train_batch_end(batch)

    def on_test_end(self, logs: Any = None) -> None:
        """End an evaluation."""
        if self._evaluates:
            self._close(logs)
        self._evaluates = False
