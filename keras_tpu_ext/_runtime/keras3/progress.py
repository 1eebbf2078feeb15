"""Counters of a model, and its progress bar, on Keras 3."""

from __future__ import annotations

import keras

from keras_tpu_ext._runtime.compat.keras3 import end_names_last_batch as end_names_last_batch
from keras_tpu_ext._runtime.training.step_state import step_state_of


def loss_scale(model: keras.Model) -> float | None:
    """Return the loss scale of the next step; `None` without loss scaling."""
    state = step_state_of(model)
    if state is not None and state.loss_scaler:
        return float(keras.ops.convert_to_numpy(state.scale))
    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) and model.optimizer.built:
        return float(keras.ops.convert_to_numpy(model.optimizer.dynamic_scale))
    return None
