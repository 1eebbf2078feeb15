"""Where the time of a `fit` goes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.callbacks._buckets import LOST
from keras_tpu_ext.callbacks._fit_observer import LedgerUser, nothing_yet
from keras_tpu_ext.callbacks._plots import Plotted, plot_goodput
from keras_tpu_ext.callbacks.goodput_report import GoodputReport

_FRACTION = "goodput/fraction"
_UPDATE_SECONDS = 0.5  # for which batches show the same value


class Goodput(LedgerUser, Plotted):
    """Charges every second of a `fit` to one bucket, and shows what part of them is training.

    Puts `goodput/fraction` into `logs`, after batches and at the end of an epoch: the seconds of training as a
    fraction of all seconds so far. `report()` has the seconds of each bucket, which sum to those of the whole `fit`:

    - `training`: the devices compute, whatever the host does meanwhile;
    - `compile`: a step is traced and compiled, also that of validation;
    - `input`: the devices wait for a batch;
    - `validation`: `evaluate` within `fit`, all of it;
    - `checkpoint`: `AutoResume`, `ModelCheckpoint` and `BackupAndRestore`;
    - `callbacks/<ClassName>`: the hooks of another callback, while no device computes;
    - `startup`: from the first line of `fit` to the first epoch;
    - `idle`: the rest, such as Keras's own Python between steps.

    (The word is Google's,
    https://cloud.google.com/blog/products/ai-machine-learning/goodput-metric-as-measure-of-ml-productivity.)

    On JAX waiting is timed as it happens. On TensorFlow the step reads its batch itself: up to 1 % of an epoch's
    executions run on batches that were taken ahead of their turn, and what others take beyond that is waiting. Epochs
    of fewer than a dozen executions are too short for it: the report then says that waiting is part of training. On a
    TPU and a GPU this is unchecked.

    With `AutoResume` it goes on counting when a training is resumed. What was done after the last checkpoint is
    `lost`; that is known with a `RunLog`, which keeps the seconds.

    Args:
        clock: Function that returns the time in seconds. Defaults to `time.perf_counter`.

    Raises:
        ArgumentError: If `clock` is not callable.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        goodput = kte.callbacks.Goodput()
        x, y = np.zeros((320, 4)), np.zeros((320, 1))
        model.fit(x, y, epochs=3, verbose=0, validation_data=(x, y), callbacks=[goodput])
        print(goodput.report())
        ```
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(clock)
        self._earlier: dict[str, Any] | None = None  # what interrupted starts have taken
        self._interrupted_after = 0.0  # seconds of all starts until the last interruption
        self._show_at = 0.0
        self._shown = 0.0

    def __repr__(self) -> str:
        known = f"{self.report().fraction:.0%} of the last fit" if self._ledger else "nothing measured yet"
        return f"<Goodput: {known}>"

    def report(self) -> GoodputReport:
        """Return where the time of the last `fit` went, or of the running one until now.

        Raises:
            NothingMeasuredError: If there was no `fit` yet.
        """
        if self._ledger is None:
            raise nothing_yet("goodput.report()")
        ledger, earlier = self._ledger, self._earlier or {}
        seconds = Counter(earlier.get("seconds", {}))
        seconds.update(ledger.seconds())
        wall = earlier.get("wall_seconds", 0.0) + ledger.now() - ledger.began
        return GoodputReport(dict(seconds), wall, earlier.get("starts", 0) + 1, ledger.knows_input)

    def _figure(self) -> Any:
        """Draw the seconds of the last `fit`, one bar of all buckets."""
        return plot_goodput(self.report())

    def get_state(self) -> dict[str, Any]:
        """Return what `AutoResume` saves: the seconds until now."""
        report = self.report()
        return {"seconds": report.seconds, "wall_seconds": report.wall_seconds, "starts": report.starts}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on counting from what `get_state` returned."""
        seconds = dict(state["seconds"])
        seconds[LOST] = seconds.get(LOST, 0.0) + max(self._interrupted_after - state["wall_seconds"], 0.0)
        self._earlier = {**state, "seconds": seconds, "wall_seconds": sum(seconds.values())}

    def interrupted_after(self, wall_seconds: float) -> None:
        """Note how many seconds all starts had until the last one was interrupted; what was not saved is lost."""
        self._interrupted_after = wall_seconds

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Reset."""
        _runtime.progress.show_in_progress_bar({_FRACTION: None})
        self._earlier, self._show_at = None, 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Put the fraction into `logs`."""
        now = self.clock()
        if now >= self._show_at and self._ledger is not None:
            self._show_at = now + _UPDATE_SECONDS
            self._shown = self.report().fraction
        if logs is not None and self._ledger is not None:
            logs[_FRACTION] = self._shown

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Put the fraction into `logs`."""
        if logs is not None and self._ledger is not None:  # or else this is a loop of the user's own
            logs[_FRACTION] = self.report().fraction
