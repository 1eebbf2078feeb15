"""Counters of a model, and its progress bar, on Keras 3."""

from __future__ import annotations

from collections.abc import Iterable

import keras

from keras_tpu_ext._runtime.compat.keras3 import last_batch as last_batch
from keras_tpu_ext._runtime.compat.keras3 import show_last_values
from keras_tpu_ext._runtime.training.step_state import step_state_of


def mark_stateful_metrics(names: Iterable[str]) -> None:
    """Let progress bars show the last value of the log keys `names`, not their average; for good."""
    show_last_values(names)


def loss_scale(model: keras.Model) -> float | None:
    """Return the loss scale of the next step; `None` without loss scaling."""
    state = step_state_of(model)
    if state is not None and state.loss_scaler:
        return float(keras.ops.convert_to_numpy(state.scale))
    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) and model.optimizer.built:
        return float(keras.ops.convert_to_numpy(model.optimizer.dynamic_scale))
    return None
