"""What `compile` and `fit` have in common on Keras 3, whatever the backend is.

Private names of Keras that this module leans on (tests/_runtime/test_keras3_private_names.py watches them):
of `Trainer`: `_compile_loss`, `_compile_metrics`, `_loss_tracker` and `_get_metrics_result_or_logs`.
"""

from __future__ import annotations

from typing import Any

import keras

from keras_tpu_ext._runtime.keras3.loss import ExactCompileLoss
from keras_tpu_ext._runtime.keras3.metrics import ExactMetrics
from keras_tpu_ext._runtime.training.compile import ExactCompile


class ExactKeras3Compile(ExactCompile):
    """An `ExactCompile` for Keras 3."""

    def _compile_options(self, options: dict[str, Any]) -> dict[str, Any]:
        # Keras would wrap the optimizer under mixed_float16; here the step scales the loss itself.
        return {**options, "auto_scale_loss": False}

    def _make_exact(self: Any) -> None:
        if self._compile_loss is not None:
            self._compile_loss = ExactCompileLoss.of(self._compile_loss, self._batch_facts)
        if self._compile_metrics is not None:
            ExactMetrics.take_over(self._compile_metrics, self._batch_facts)

    def _build_optimizer(self: Any) -> None:
        self.optimizer.build(self.trainable_variables)

    def _get_metrics_result_or_logs(self: Any, logs: Any) -> Any:
        """Keras calls this when an epoch's batches are over and before validation: the time to end a window."""
        self._end_windows()
        model: Any = super()
        results = model._get_metrics_result_or_logs(logs)
        counted = float(keras.ops.cast(self._loss_tracker.count, "float32"))  # over all replicas
        if isinstance(logs, dict) and "loss" in logs and not counted:
            return {**results, "loss": logs["loss"]}  # of a step of the user's own, which tracks nothing
        return results
