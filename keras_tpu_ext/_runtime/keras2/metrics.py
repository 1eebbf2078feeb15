"""The compiled metrics of Keras 2, on replicas without examples and on batches with padded rows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Metric, Nest
from keras_tpu_ext._runtime.compat import mask_of
from keras_tpu_ext._runtime.compat.autograph import converted
from keras_tpu_ext._runtime.compat.keras2 import private
from keras_tpu_ext._runtime.tensorflow import batch as _tf_batch
from keras_tpu_ext._runtime.tensorflow.batch import BATCH
from keras_tpu_ext._runtime.tensorflow.empty_replicas import no_row_if_empty
from keras_tpu_ext._runtime.training.compile_utils import (
    has_own_update,
    is_function,
    needs_whole_batch,
    reduces_batch,
    respects_weights,
)

_compile_utils = private("engine.compile_utils")
_losses_utils = private("utils.losses_utils")
_MetricsContainer: Any = private("engine.compile_utils:MetricsContainer")


class ExactMetrics(_MetricsContainer):
    """A `MetricsContainer` that counts only rows that are examples in any metric, weighted or not.

    Keras's own metrics give a padded row the weight zero, which keeps every shape static. Other metrics may use
    weights in any way, or not at all; they get only the rows of examples.
    """

    @classmethod
    def take_over(cls, compiled: Any) -> None:
        """Turn the container that `compile` has created into this class."""
        compiled.__class__ = cls

    def update_state(self, y_true: Nest, y_pred: Nest, sample_weight: Nest = None) -> None:
        """Update every metric with one batch."""
        y_true, y_pred, sample_weight = no_row_if_empty((y_true, y_pred, sample_weight), BATCH.has_examples)
        if not self._built:
            self.build(y_pred, self._conform_to_outputs(y_pred, y_true))
        has_own = any(is_function(metric) or has_own_update(metric) for metric in self.metrics)
        if not _tf_batch.needs_gather() or not (_tf_batch.is_padded() or has_own):
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
            for metric in of_output:
                _update(metric, true, predicted, mask)
            for metric in weighted:
                _update(metric, true, predicted, _losses_utils.apply_mask(predicted, weight, mask))


def _update(metric: Metric, true: tf.Tensor, predicted: tf.Tensor, weight: tf.Tensor) -> None:
    if metric is None:
        return
    if is_function(metric) and converted(reduces_batch)(
        metric, _tf_batch, *_as_it_gets_them(metric, true, predicted)
    ):
        # It reduces its examples to one number: call it with all of them, on every replica alike.
        true, whole, weight = _tf_batch.gather_examples((true, predicted, weight))
        with _tf_batch.whole_batch_view():
            metric.update_state(true, whole, sample_weight=weight)
    elif _tf_batch.num_replicas() > 1 and needs_whole_batch(metric, _tf_batch, true, predicted, weight):
        true, whole, weight = _tf_batch.gather_examples((true, predicted, weight))
        with _tf_batch.whole_state(metric.variables), _tf_batch.whole_batch_view():
            metric.update_state(true, whole, sample_weight=weight)
    elif not _tf_batch.is_padded():
        metric.update_state(true, predicted, sample_weight=weight)
    elif respects_weights(metric, predicted) and _tf_batch.valid_rows_of(predicted) is not None:
        if weight is None:
            weight = tf.cast(_tf_batch.valid_rows_of(predicted), tf.float32)
        metric.update_state(true, predicted, sample_weight=_tf_batch.zero_invalid_rows(tf.cast(weight, tf.float32)))
    else:
        true, predicted, weight = (_tf_batch.select_valid_rows(part) for part in (true, predicted, weight))
        metric.update_state(true, predicted, sample_weight=weight)


def _as_it_gets_them(metric: Metric, true: tf.Tensor, predicted: tf.Tensor) -> tuple[Any, Any]:
    """Return the arguments as Keras passes them to a metric's function: all in the metric's own dtype."""
    return tf.cast(true, metric.dtype), tf.cast(predicted, metric.dtype)
