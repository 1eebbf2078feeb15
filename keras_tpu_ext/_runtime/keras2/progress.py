"""Counters of a model, and its progress bar, on Keras 2."""

from __future__ import annotations

import tensorflow as tf

from keras_tpu_ext._runtime.keras2 import optimizer as optimizers
from keras_tpu_ext._runtime.tensorflow.event_file import event_file_class as event_file_class
from keras_tpu_ext._runtime.training.progress import counts_examples as counts_examples
from keras_tpu_ext._runtime.training.progress import examples_seen as examples_seen
from keras_tpu_ext._runtime.training.progress import show_in_progress_bar as show_in_progress_bar
from keras_tpu_ext._runtime.training.progress import train_steps as train_steps
from keras_tpu_ext._runtime.training.step_state import step_state_of


def end_names_last_batch() -> bool:
    """Return whether `on_train_batch_end` gets the index of the last batch of an execution, not of the first."""
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

    A `LossScaleOptimizer` of Keras 2 counts skipped steps like any others.
    """
    state = step_state_of(model)
    if state is None or not state.loss_scaler:
        return None
    return int(state.skipped_steps.numpy())
