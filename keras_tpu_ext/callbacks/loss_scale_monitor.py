"""Loss scaling during `model.fit`: the scale, the skipped steps, and the gradients that overflowed."""

from __future__ import annotations

from collections.abc import Callable

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.values import Overflow
from keras_tpu_ext.callbacks._fit_observer import FitObserver, say, warn
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.output.display import counted, variables_text

_SCALE, _SKIPPED = "loss_scale/value", "loss_scale/skipped_steps"
_MOST_UPDATES = 3  # that are named
_IN_SUM = "Each replica's gradients were finite, and their sum was not"
_UNSCALED = (
    "LossScaleMonitor has nothing to show: the loss of this model is not scaled. "
    'Write model.compile(..., loss_scale="dynamic"), or leave the callback out'
)


class LossScaleMonitor(FitObserver):
    """Shows the loss scale and the steps it skipped, and names the variable and replica that overflowed.

    Puts `loss_scale/value` (what the next loss is multiplied by) and `loss_scale/skipped_steps` (since `compile`)
    into `logs`, after batches and at the end of an epoch. Put it **before** callbacks that should see these keys,
    such as a `CSVLogger`. After an epoch with gradients that were not finite it prints where they occurred:

        LossScaleMonitor: epoch 1 skipped 1 step, the loss scale is 16384. Update 5: dense/kernel on replica 1

    If all variables of one replica overflow at once, the loss there, or the data, was not finite; if only a few do,
    their gradients alone were too large. A few skipped steps at the start of training are how a dynamic scale finds
    its value. On JAX no replica is named: gradients are first seen after they are combined over all replicas.

    Reading the scale waits for the device, so after a batch `logs` show the reading before the last `window`-th
    execution. With this callback the train step checks each gradient, and is traced anew at the start of a `fit`. The
    names and the count need a model with the step of this package: in a scope, or a `TPUModel`. If several processes
    train together, all of them need the callback, and only the chief prints.

    Args:
        window: Number of executions between readings. Defaults to 20.
        verbose: Whether to print. Defaults to `True`.

    Raises:
        ArgumentError: If `window` is not an integer of at least 1.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        with kte.strategy_scope(precision="mixed_float16"):
            inputs = keras.Input((4,))
            x = keras.layers.Dense(16, activation="relu")(inputs)
            model = kte.TPUModel(inputs, keras.layers.Dense(1, dtype="float32")(x))
            model.compile("adam", "mse", loss_scale=kte.LossScale(initial=2**24))  # far too large at first
        x = np.random.default_rng(0).normal(size=(512, 4))
        monitor = kte.callbacks.LossScaleMonitor()
        history = model.fit(x, x.sum(axis=1), epochs=2, callbacks=[monitor])
        print(history.history["loss_scale/skipped_steps"], monitor.overflows)
        ```
    """

    def __init__(self, *, window: int = 20, verbose: bool = True) -> None:
        super().__init__()
        self.window = check.integer(type(self).__name__, "window", window, example=20)
        self.verbose = verbose
        self._read_overflows: Callable[[], list[Overflow]] | None = None
        self._overflows: list[Overflow] = []
        self._logs: dict[str, float] = {}
        self._executions = 0

    @property
    def overflows(self) -> tuple[Overflow, ...]:
        """Gradients of the last `fit` that were not finite, with `update`, `replica` and `variables`.

        If a variable overflows on one replica several times between two readings, the last time is kept.
        """
        return tuple(self._overflows)

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Start watching for overflows."""
        self._overflows, self._executions, self._logs = [], 0, {}
        _runtime.progress.show_in_progress_bar({_SCALE: "loss_scale", _SKIPPED: "skipped_steps"})
        self._read_overflows = _runtime.watches.watch_overflow(self.model)
        self._skipped_before = _runtime.progress.skipped_steps(self.model) or 0

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Stop watching for overflows."""
        _runtime.watches.unwatch(self.model)
        self._read_overflows = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Remember the number of overflows before the epoch."""
        self._printed = len(self._overflows)

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Read the scale at every `window`-th execution."""
        if self._executions % self.window == 0:
            self._read()
        self._executions += 1

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Put the last reading into `logs`."""
        if logs is not None:
            logs.update(self._logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Read, put the values into `logs`, and print the overflows of the epoch."""
        self._read()
        if not self._logs:
            warn(_UNSCALED)
        if logs is not None:
            logs.update(self._logs)
        found = self._overflows[self._printed :]
        skipped = int(self._logs.get(_SKIPPED, self._skipped_before))
        if self.verbose and _runtime.devices.is_chief() and (found or skipped > self._skipped_before):
            say(self, f"LossScaleMonitor: {self._summary(epoch, skipped - self._skipped_before, found)}")
        self._skipped_before = skipped

    def _read(self) -> None:
        scale, skipped = _runtime.progress.loss_scale(self.model), _runtime.progress.skipped_steps(self.model)
        self._logs = {} if scale is None else {_SCALE: scale}
        if skipped is not None:
            self._logs[_SKIPPED] = skipped
        if self._read_overflows is not None:
            self._overflows += self._read_overflows()

    def _summary(self, epoch: int, skipped: int, found: list[Overflow]) -> str:
        scale = self._logs.get(_SCALE)
        parts = [f"epoch {epoch + 1} skipped {counted(skipped, 'step')}"]
        parts += [] if scale is None else [f"the loss scale is {scale:g}"]
        sentences = [_sentence(overflow) for overflow in found[-_MOST_UPDATES:]]
        if not found and self._read_overflows is not None:
            sentences = [_IN_SUM]
        return ". ".join([", ".join(parts), *sentences])


def _sentence(overflow: Overflow) -> str:
    where = "" if overflow.replica is None else f" on replica {overflow.replica}"
    return f"Update {overflow.update}: {variables_text(overflow.variables, overflow.of)}{where}"
