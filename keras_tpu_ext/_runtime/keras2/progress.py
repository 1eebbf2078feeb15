"""Counters of a model, and its progress bar, on Keras 2: that averages log keys that are no metrics of the model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import tensorflow as tf

from keras_tpu_ext._runtime.compat.keras2 import keras
from keras_tpu_ext._runtime.keras2 import optimizer as optimizers
from keras_tpu_ext._runtime.tensorflow.event_file import event_file_class as event_file_class
from keras_tpu_ext._runtime.training.progress import examples_seen as examples_seen
from keras_tpu_ext._runtime.training.progress import train_steps as train_steps
from keras_tpu_ext._runtime.training.step_state import step_state_of

_STATEFUL_METRICS: set[str] = set()


def mark_stateful_metrics(names: Iterable[str]) -> None:
    """Let progress bars show the last value of the log keys `names`, not their average; for good."""
    if not _STATEFUL_METRICS:
        logger = keras.callbacks.ProgbarLogger
        logger.on_epoch_begin = _with_stateful_metrics(logger.on_epoch_begin)
    _STATEFUL_METRICS.update(names)


def _with_stateful_metrics(stock: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(stock)
    def on_epoch_begin(self: tf.keras.callbacks.ProgbarLogger, *args: object, **kwargs: object) -> None:
        self.stateful_metrics = {*self.stateful_metrics, *_STATEFUL_METRICS}
        stock(self, *args, **kwargs)

    return on_epoch_begin


def end_names_last_batch() -> bool:
    """Return whether `on_train_batch_end` names the last batch of an execution, and not the first."""
    return True


def loss_scale(model: tf.keras.Model) -> float | None:
    """Return the loss scale of the next step; `None` without loss scaling."""
    state = step_state_of(model)
    if state is not None and state.loss_scaler:
        return float(state.scale.numpy())
    if optimizers.scales(model.optimizer):
        return float(tf.convert_to_tensor(model.optimizer.loss_scale).numpy())
    return None


def skipped_steps(model: tf.keras.Model) -> int | None:
    """Return the number of steps that loss scaling has skipped since `compile`; `None` if nothing counts them.

    A `LossScaleOptimizer` of Keras 2 counts skipped steps among the others.
    """
    state = step_state_of(model)
    if state is None or not state.loss_scaler:
        return None
    return int(state.skipped_steps.numpy())
