"""The compiled metrics of Keras 2, on replicas without examples and on batches with padded rows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Metric, Nest
from keras_tpu_ext._runtime.compat import mask_of
from keras_tpu_ext._runtime.compat.autograph import converted
from keras_tpu_ext._runtime.compat.keras2 import private
from keras_tpu_ext._runtime.tensorflow import batch
from keras_tpu_ext._runtime.tensorflow.batch import BATCH
from keras_tpu_ext._runtime.tensorflow.empty_replicas import no_row_if_empty
from keras_tpu_ext._runtime.training.batch import Batch
from keras_tpu_ext._runtime.training.compile_utils import (
    is_function,
    reduces_batch,
    runs_own_code,
    update_metric,
)

_compile_utils = private("engine.compile_utils")
_losses_utils = private("utils.losses_utils")
_MetricsContainer: Any = private("engine.compile_utils:MetricsContainer")


class ExactMetrics(_MetricsContainer):
    """A `MetricsContainer` that counts only rows that are examples in any metric, weighted or not."""

    @classmethod
    def attach(cls, compiled: Any) -> None:
        """Turn the container that `compile` has created into this class."""
        compiled.__class__ = cls

    def update_state(self, y_true: Nest, y_pred: Nest, sample_weight: Nest = None) -> None:
        """Update every metric with one batch."""
        y_true, y_pred, sample_weight = no_row_if_empty((y_true, y_pred, sample_weight), BATCH.has_examples)
        if not self._built:
            self.build(y_pred, self._conform_to_outputs(y_pred, y_true))
        if not batch.needs_gather() or not (batch.is_padded() or any(map(runs_own_code, self.metrics))):
            super().update_state(y_true, y_pred, sample_weight)
            return
        y_true = self._conform_to_outputs(y_pred, y_true)
        sample_weight = self._conform_to_outputs(y_pred, sample_weight)
        parts = [tf.nest.flatten(part) for part in (y_true, y_pred, sample_weight)]
        for true, predicted, weight, of_output, weighted in zip(
            *parts, self._metrics, self._weighted_metrics, strict=False
        ):
            if true is None:  # of an output without targets
                continue
            true, predicted, weight = _compile_utils.match_dtype_and_rank(true, predicted, weight)
            mask = mask_of(predicted)
            weight = _losses_utils.apply_mask(predicted, weight, mask)
            for metrics, row_weight in ((of_output, mask), (weighted, weight)):
                for metric in metrics:
                    if metric is not None:
                        update_metric(metric, batch, true, predicted, row_weight, reduces=_reduces_batch)


def _reduces_batch(metric: Metric, batch: Batch, true: tf.Tensor, predicted: tf.Tensor) -> bool:
    """Ask with the arguments as Keras passes them to a metric's function: all in the metric's own dtype."""
    if not is_function(metric):
        return False
    arguments = tf.cast(true, metric.dtype), tf.cast(predicted, metric.dtype)
    return converted(reduces_batch)(metric, batch, *arguments)
