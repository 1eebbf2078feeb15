"""Keras 3's compiled loss, with each replica returning its share of the loss of the whole batch.

Private names of Keras that this module leans on (tests/_runtime/test_keras3_private_names.py watches them):
`trainers.compile_utils.CompileLoss` with `_flat_losses` (tuples with a field `loss`), `metrics`, `_user_loss` and
`_user_loss_weights`;
`losses.loss.apply_mask`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras.src.losses.loss import apply_mask
from keras.src.trainers.compile_utils import CompileLoss

from keras_tpu_ext._runtime.training.batch import Batch
from keras_tpu_ext._runtime.training.loss import LossShare


class ExactCompileLoss(CompileLoss):
    """A `CompileLoss` whose value on a replica is that replica's share of the global loss."""

    def __init__(self, *args: Any, batch: Batch, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._batch = batch

    @classmethod
    def of(cls, compiled: CompileLoss, batch: Batch) -> ExactCompileLoss:
        """Return one for what `compile` was given."""
        names = {"reduction": compiled.reduction, "output_names": compiled.output_names}
        return cls(compiled._user_loss, compiled._user_loss_weights, **names, batch=batch)

    def build(self, y_true: Any, y_pred: Any) -> None:
        """Resolve the user's losses as Keras does, then let each return a share."""
        super().build(y_true, y_pred)
        trackers = self.metrics or [None] * len(self._flat_losses)
        self._flat_losses: list[Any] = [
            flat._replace(loss=Keras3LossShare(flat.loss, self._batch, tracker))
            for flat, tracker in zip(self._flat_losses, trackers, strict=True)
        ]


class Keras3LossShare(LossShare):
    """A `LossShare` with the reductions of Keras 3."""

    def _unreduced(self, call: Callable[[Any, Any], Any]) -> Any:
        unreduced = super()._unreduced(call)
        unreduced.reduction = None
        return unreduced

    def _sum_of_weights(self, values: Any, mask: Any, sample_weight: Any) -> Any:
        if sample_weight is not None:
            sample_weight = keras.ops.convert_to_tensor(sample_weight, dtype=values.dtype)
        if mask is not None:
            mask = self._batch.zero_invalid_rows(mask)
        return keras.ops.sum(apply_mask(sample_weight, mask, dtype=values.dtype, reduction=self.loss.reduction))
