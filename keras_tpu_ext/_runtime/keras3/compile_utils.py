"""Keras 3's compiled loss and metrics, exact over replicas and without padded rows."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.training.compile_utils import (
    LocalLoss,
    runs_own_code,
    update_metric,
)
from keras_tpu_ext._runtime.training.protocols import BatchOfStep

CompileLoss: Any = private("keras.src.trainers.compile_utils:CompileLoss")
CompileMetrics: Any = private("keras.src.trainers.compile_utils:CompileMetrics")


class ExactCompileLoss(CompileLoss):
    """A `CompileLoss` whose value on a replica is its part of the global loss."""

    def __init__(self, *args: Any, batch: BatchOfStep, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._batch = batch

    @classmethod
    def of(cls, compiled: CompileLoss, batch: BatchOfStep) -> ExactCompileLoss:
        """Return an instance for the arguments of `compile`."""
        names = {"reduction": compiled.reduction, "output_names": compiled.output_names}
        return cls(compiled._user_loss, compiled._user_loss_weights, **names, batch=batch)

    def build(self, y_true: Nest, y_pred: Nest) -> None:
        """Resolve the user's losses as Keras does, then make each return its local part."""
        super().build(y_true, y_pred)
        trackers = self.metrics or [None] * len(self._flat_losses)
        self._flat_losses: list[Any] = [
            flat._replace(loss=LocalLoss(flat.loss, self._batch, tracker))
            for flat, tracker in zip(self._flat_losses, trackers, strict=True)
        ]


class ExactMetrics(CompileMetrics):
    """A `CompileMetrics` that does not count padded rows in any metric, weighted or not."""

    knows_padding = True
    _batch: BatchOfStep

    @classmethod
    def attach(cls, compiled: CompileMetrics, batch: BatchOfStep) -> None:
        """Turn the metrics that `compile` has created into this class."""
        compiled.__class__ = cls
        vars(compiled)["_batch"] = batch

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Update every metric with one batch."""
        if not self.built:
            self.build(y_true, y_pred)
        batch = self._batch
        if not batch.needs_gather() or (not batch.is_padded() and not any(map(runs_own_code, self.metrics))):
            super().update_state(y_true, y_pred, sample_weight)
            return
        y_true, y_pred = self._flatten_y(y_true), self._flatten_y(y_pred)
        weights = [None] * len(y_pred) if sample_weight is None else self._flatten_y(sample_weight)
        if len(weights) < len(y_pred):
            weights = weights[:1] * len(y_pred)
        unweighted = [None] * len(y_pred)
        for of_outputs, given in ((self._flat_metrics, unweighted), (self._flat_weighted_metrics, weights)):
            for of_output, true, predicted, weight in zip(of_outputs, y_true, y_pred, given, strict=False):
                for metric in of_output.metrics if of_output is not None else ():
                    update_metric(metric, batch, true, predicted, weight)
