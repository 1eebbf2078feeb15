"""Callbacks of TensorFlow Addons 0.23, on Keras 3."""

from __future__ import annotations

import datetime
import importlib
import time
from typing import Any

import keras


class TimeStopping(keras.callbacks.Callback):
    """Stops after the epoch in which `seconds` are over, as in Addons."""

    def __init__(self, seconds: int = 86400, verbose: int = 0) -> None:
        super().__init__()
        self.seconds, self.verbose = seconds, verbose
        self.stopped_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Look at the clock."""
        self.stopping_time = time.time() + self.seconds

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stop, if the time is over."""
        if time.time() >= self.stopping_time:
            self.model.stop_training = True
            self.stopped_epoch = epoch

    def on_train_end(self, logs: Any = None) -> None:
        """Tell it."""
        if self.stopped_epoch is not None and self.verbose > 0:
            after = datetime.timedelta(seconds=self.seconds)
            print(f"Timed stopping at epoch {self.stopped_epoch + 1} after training for {after}")


class TQDMProgressBar(keras.callbacks.Callback):
    """Bars of tqdm for `fit`, of all epochs and of each; unlike in Addons, `evaluate` alone shows none."""

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
        self._tqdm = importlib.import_module("tqdm.auto").tqdm
        self._separator, self._format = metrics_separator, metrics_format
        common = {"dynamic_ncols": True, "mininterval": 1 / update_per_second}
        # A bar that is not shown is a disabled one.
        self._overall = {"bar_format": overall_bar_format, "leave": leave_overall_progress, "unit": "epochs"}
        self._overall |= {**common, "desc": "Training", "disable": not show_overall_progress}
        self._of_epoch = {"bar_format": epoch_bar_format, "leave": leave_epoch_progress, "unit": "steps"}
        self._of_epoch |= {**common, "disable": not show_epoch_progress}

    def on_train_begin(self, logs: Any = None) -> None:
        """Open the bar of epochs."""
        self._epochs = self._tqdm(total=self.params["epochs"], **self._overall)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Open the epoch's bar."""
        if not self._of_epoch["disable"]:
            print(f"Epoch {epoch + 1}/{self.params['epochs']}")
        self._steps = self._tqdm(total=self.params.get("steps"), **self._of_epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Move the epoch's bar."""
        self._steps.update(batch + 1 - self._steps.n)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Close the epoch's bar, with the metrics."""
        pairs = [self._format.format(name=name, value=value) for name, value in (logs or {}).items()]
        self._steps.set_description_str(self._separator.join(pairs))
        self._steps.close()
        self._epochs.update(1)

    def on_train_end(self, logs: Any = None) -> None:
        """Close the bar of epochs."""
        self._epochs.close()
