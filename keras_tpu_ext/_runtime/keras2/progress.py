"""Keras 2's progress bar averages over an epoch whatever is no metric of the model."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.compat.keras2 import keras
from keras_tpu_ext._runtime.keras2 import optimizer as optimizers
from keras_tpu_ext._runtime.tensorflow.event_file import event_file_class as event_file_class
from keras_tpu_ext._runtime.training.progress import examples_seen as examples_seen
from keras_tpu_ext._runtime.training.progress import train_steps as train_steps
from keras_tpu_ext._runtime.training.step_state import step_state_of

_AS_THEY_ARE: set[str] = set()
_Logger: Any = keras.callbacks.ProgbarLogger


def mark_stateful_metrics(names: Iterable[str]) -> None:
    """Let progress bars show the last value of the log keys `names` and not their average; for good."""
    if not _AS_THEY_ARE:
        _Logger.on_epoch_begin = _with_names(_Logger.on_epoch_begin)
    _AS_THEY_ARE.update(names)


def _with_names(stock: Any) -> Any:
    @functools.wraps(stock)
    def on_epoch_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.stateful_metrics = {*self.stateful_metrics, *_AS_THEY_ARE}
        return stock(self, *args, **kwargs)

    return on_epoch_begin


def loss_scale(model: Any) -> float | None:
    """Return what the loss of the next step is multiplied by; `None` where nothing scales it by rule."""
    state = step_state_of(model)
    if state is not None and state.loss_scaler:
        return float(state.scale.numpy())
    if optimizers.scales(model.optimizer):
        return float(tf.convert_to_tensor(model.optimizer.loss_scale).numpy())
    return None


def skipped_steps(model: Any) -> int | None:
    """Return how many steps were skipped since `compile`, or `None` where nothing counts them.

    A `LossScaleOptimizer` of Keras 2 counts skipped steps among the others.
    """
    state = step_state_of(model)
    if state is None or not state.loss_scaler:
        return None
    return int(state.skipped_steps.numpy())
