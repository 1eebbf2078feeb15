"""Keras 2's compiled loss and metrics, exact over replicas and without rows that are no examples."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Metric, Nest
from keras_tpu_ext._runtime.compat import mask_of
from keras_tpu_ext._runtime.compat.autograph import converted
from keras_tpu_ext._runtime.compat.keras2 import private
from keras_tpu_ext._runtime.tensorflow import batch
from keras_tpu_ext._runtime.tensorflow.batch import BATCH, note_shared
from keras_tpu_ext._runtime.tensorflow.empty_replicas import no_row_if_empty
from keras_tpu_ext._runtime.tensorflow.replicas import as_global, num_replicas, sum_over_replicas, values_of_replicas
from keras_tpu_ext._runtime.training.compile_utils import (
    LocalLoss,
    is_function,
    reduces_batch,
    runs_own_code,
    update_metric,
)
from keras_tpu_ext._runtime.training.protocols import BatchOfStep

_compile_utils = private("engine.compile_utils")
_losses_utils = private("utils.losses_utils")
_LossesContainer: Any = private("engine.compile_utils:LossesContainer")
_MetricsContainer: Any = private("engine.compile_utils:MetricsContainer")


class LocalLosses(list[Any]):
    """Losses of layers and weights of the replica, for `ExactLosses`."""


class ExactLosses(_LossesContainer):
    """A `LossesContainer` whose value on a replica is its part of the loss of the whole batch.

    In a user's own `train_step`, the value is that of the whole loss, and its gradient that of the local part.
    """

    @classmethod
    def of(cls, compiled: Any) -> ExactLosses:
        """Return an instance for the arguments of `compile`."""
        return cls(
            compiled._user_losses,
            compiled._user_loss_weights,
            output_names=compiled._output_names,
            total_loss_mean=compiled._total_loss_mean,
        )

    def build(self: Any, y_pred: Nest) -> None:
        """Resolve the user's losses as Keras does, then make each return its local part."""
        super().build(y_pred)
        self._losses = [
            None if loss is None else Keras2LocalLoss(loss, batch, tracker)
            for loss, tracker in zip(self._losses, self._per_output_metrics, strict=True)
        ]

    def __call__(
        self, y_true: Nest, y_pred: Nest, sample_weight: Nest = None, regularization_losses: Any = None
    ) -> tf.Tensor | None:
        """Return the loss, and track it and the loss of each output."""
        note_shared()
        y_true, y_pred, sample_weight = no_row_if_empty((y_true, y_pred, sample_weight), BATCH.has_examples)
        values, rows = self._of_outputs(y_true, y_pred, sample_weight)
        if regularization_losses:
            common = _losses_utils.cast_losses_to_common_dtype(list(regularization_losses))
            are_local = isinstance(regularization_losses, LocalLosses)
            values += common if are_local else [loss / tf.cast(num_replicas(), loss.dtype) for loss in common]
        if not values:
            return None
        total = tf.add_n(_losses_utils.cast_losses_to_common_dtype(values))
        if rows is None and BATCH.layer_loss_elements is not None:  # the mean of the layers' unreduced terms
            _count(self._total_loss_mean, total, BATCH.layer_loss_elements)
        else:
            _track(self._total_loss_mean, total, rows)
        in_own_step = BATCH.role != "exact" and not total.shape.rank
        return as_global(total) if in_own_step else total

    def _of_outputs(self, y_true: Nest, y_pred: Nest, sample_weight: Nest) -> tuple[list[Any], Any]:
        """Return the weighted losses of the outputs, and the number of rows of the first of them."""
        y_true = self._conform_to_outputs(y_pred, y_true)
        sample_weight = self._conform_to_outputs(y_pred, sample_weight)
        if not self._built:
            self.build(y_pred)
        parts = [tf.nest.flatten(part) for part in (y_true, y_pred, sample_weight)]
        values: list[Any] = []
        rows: Any = None
        for true, predicted, weight, loss, factor in zip(*parts, self._losses, self._loss_weights, strict=False):
            if true is None or loss is None:
                continue
            true, predicted, weight = _compile_utils.match_dtype_and_rank(true, predicted, weight)
            mask = getattr(predicted, "_keras_mask", None)
            value = loss(true, predicted, sample_weight=_losses_utils.apply_mask(predicted, weight, mask))
            values.append(value if factor is None else value * factor)
            rows = _rows(true) if rows is None else rows
        return values, rows


class Keras2LocalLoss(LocalLoss):
    """A `LocalLoss` of Keras 2, which weights every batch by its rows."""

    def _weight_of_batch(self, y_pred: tf.Tensor) -> tf.Tensor:
        return _examples(_rows(tf.nest.flatten(y_pred)[0]))

    def _weight_of_values(self, values: tf.Tensor) -> tf.Tensor:
        examples = sum_over_replicas([self._weight_of_batch(values)])[0]
        return super()._weight_of_values(values) * examples


def _track(tracker: Any, share: tf.Tensor, rows: tf.Tensor) -> None:
    """Track the mean of all batches, each weighted by its rows, as on one device; reading sums over replicas."""
    # Keras weights a batch by the rows of its targets; a batch without targets has weight 1, whatever its size.
    weight = tf.constant(1.0) / num_replicas() if rows is None else _examples(rows)
    (total,) = sum_over_replicas([weight])
    dtype = tracker.total.dtype
    total, weight = tf.cast(total, dtype), tf.cast(weight, dtype)
    if share.shape.rank:
        weight = tf.cast(tf.size(share), dtype) * tf.cast(batch.valid_fraction(), dtype) * total
    # Where every replica has the whole loss, one without examples must add none of it, even if it is infinite.
    _count(tracker, tf.math.multiply_no_nan(tf.cast(tf.reduce_sum(share), dtype), total), weight)


def _count(tracker: Any, total: tf.Tensor, count: tf.Tensor) -> None:
    tracker.total.assign_add(tf.cast(total, tracker.total.dtype))
    tracker.count.assign_add(tf.cast(count, tracker.count.dtype))


def _rows(values: tf.Tensor) -> tf.Tensor:
    return values.nrows() if isinstance(values, tf.RaggedTensor) else tf.shape(values)[0]


def _examples(rows: tf.Tensor) -> tf.Tensor:
    """Return the number of this replica's examples in the current batch; `rows` if no step runs."""
    return tf.cast(rows if BATCH.examples is None else BATCH.examples, tf.float32)


class ExactMetrics(_MetricsContainer):
    """A `MetricsContainer` that counts only rows that are examples in any metric, weighted or not."""

    @classmethod
    def attach(cls, compiled: Any) -> None:
        """Turn the container that `compile` has created into this class."""
        compiled.__class__ = cls
        # Keras resets none before the first epoch, and what is read is the sum of what all replicas begin with.
        for metric in tf.nest.flatten([compiled._user_metrics, compiled._user_weighted_metrics]):
            values = [values_of_replicas(variable) for variable in getattr(metric, "variables", ())]
            if values and all(len(each) > 1 and (each == each[0]).all() for each in values):
                metric.reset_state()

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


def _reduces_batch(metric: Metric, batch: BatchOfStep, true: tf.Tensor, predicted: tf.Tensor) -> bool:
    """Ask with the arguments as Keras passes them to a metric's function: all in the metric's own dtype."""
    if not is_function(metric):
        return False
    arguments = tf.cast(true, metric.dtype), tf.cast(predicted, metric.dtype)
    return converted(reduces_batch)(metric, batch, *arguments)
