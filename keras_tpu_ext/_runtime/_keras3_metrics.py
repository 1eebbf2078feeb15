"""The compiled metrics of Keras 3, on batches with padded rows.

Private names of Keras that this module leans on (tests/_runtime/test_private_names.py watches them):
`trainers.compile_utils.CompileMetrics` with `_flat_metrics`, `_flat_weighted_metrics` and `_flatten_y`; the attribute
`_keras_mask` of tensors.
"""

from __future__ import annotations

from typing import Any

import keras
from keras.src.trainers.compile_utils import CompileMetrics

from keras_tpu_ext._runtime._tf_batch import BATCH, only_real, real_of


class MetricsOfExamples(CompileMetrics):
    """A `CompileMetrics` that counts no padded row: those have weight zero in every metric, weighted or not."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Update every metric with one batch."""
        if BATCH.real is None:
            super().update_state(y_true, y_pred, sample_weight)
            return
        if not self.built:
            self.build(y_true, y_pred)
        y_true, y_pred = self._flatten_y(y_true), self._flatten_y(y_pred)
        unweighted = [_weights_of_one(outputs) for outputs in y_pred]
        weighted = unweighted if sample_weight is None else self._flatten_y(sample_weight)
        if len(weighted) < len(y_pred):
            weighted = weighted[:1] * len(y_pred)
        for metrics, weights in ((self._flat_metrics, unweighted), (self._flat_weighted_metrics, weighted)):
            for of_output, true, predicted, weight in zip(metrics, y_true, y_pred, weights, strict=False):
                if of_output is not None:
                    of_output.update_state(true, predicted, weight)


def _weights_of_one(outputs: Any) -> Any:
    """Return weight one for every example, in the shape of the mask where there is one: Keras multiplies the two."""
    mask = getattr(outputs, "_keras_mask", None)
    real = real_of(outputs) if mask is None else only_real(keras.ops.ones_like(mask))
    return keras.ops.cast(real, "float32")
