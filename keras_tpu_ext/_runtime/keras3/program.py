"""The exact step on Keras 3, whatever the backend is."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import keras

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.patches import Patch
from keras_tpu_ext._runtime.common.types import Callback
from keras_tpu_ext._runtime.keras3.compile_utils import ExactCompileLoss, ExactMetrics
from keras_tpu_ext._runtime.keras3.tpu_operations import tpu_operations
from keras_tpu_ext._runtime.training.program import ExactProgram

_File: Any = private("keras.src.utils.file_utils:File")
_exists: Any = private("keras.src.utils.file_utils:exists")


class Keras3Program(ExactProgram):
    """The part of an `ExactProgram` that is the same on all backends."""

    tpu_operations = staticmethod(tpu_operations)

    def make_exact(self) -> None:
        """Replace the compiled loss and metrics by exact ones."""
        model, batch = self.model, self.facts
        compiled = model._compile_loss
        # If `compile` gets no loss, Keras keeps the built one of an earlier `compile`.
        if compiled is not None and not isinstance(compiled, ExactCompileLoss):
            model._compile_loss = ExactCompileLoss.of(compiled, batch)
        if model._compile_metrics is not None:
            ExactMetrics.attach(model._compile_metrics, batch)

    def build_optimizer(self) -> None:
        """Make the optimizer's variables, once: a `LossScaleOptimizer` would add its own anew."""
        if not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)

    def backup_epoch(self, backup: Callback) -> int:
        """Return the number of epochs after which a `BackupAndRestore` resumes training."""
        path = backup._training_metadata_path
        if not _exists(path):
            return 0
        with _File(path, "r") as file:
            return int(json.loads(file.read())["epoch"])

    def write_patches(self, callback: Callback) -> list[Patch]:
        """Return patches for callbacks that know nothing about other processes."""
        if isinstance(callback, keras.callbacks.ModelCheckpoint):
            # Without a folder in its path it creates none; and `model.save` writes nothing.
            name = "model.weights.h5" if callback.save_weights_only else "model.keras"
            return [(callback, "a ModelCheckpoint's filepath", lambda path: name)]
        if isinstance(callback, keras.callbacks.BackupAndRestore):  # restores, but keeps and deletes nothing
            save_weights = functools.partial(self.model.save_weights, "model.weights.h5")
            return [
                (callback, "a BackupAndRestore's _save_model", lambda save: save_weights),
                (callback, "a BackupAndRestore's on_train_end", lambda delete: lambda logs=None: None),
            ]
        return []

    def metrics_result_or_logs(self, stock: Callable[..., Any], logs: Any) -> Any:
        """End the windows of an epoch, after whose batches and before whose validation Keras calls this."""
        self.end_windows()
        results = stock(logs)
        counted = float(keras.ops.cast(self.model._loss_tracker.count, "float32"))  # over all replicas
        if isinstance(logs, dict) and "loss" in logs and not counted:
            return {**results, "loss": logs["loss"]}  # of a user's own step, which tracks nothing
        return results
