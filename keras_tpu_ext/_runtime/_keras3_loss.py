"""Keras 3's compiled loss, with each replica returning its share of the loss of the whole batch.

Private names of Keras that this module leans on (tests/_runtime/test_private_names.py watches them):
`trainers.compile_utils.CompileLoss` with `_flat_losses` (tuples with a field `loss`), `metrics`, `_user_loss` and
`_user_loss_weights`;
`losses.loss.apply_mask`.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import keras
from keras.src.losses.loss import apply_mask
from keras.src.trainers.compile_utils import CompileLoss

from keras_tpu_ext._runtime._keras3_batch import Batch
from keras_tpu_ext._runtime._keras3_masks import mask_of
from keras_tpu_ext._runtime.global_mean import LocalSums, global_denominator


class GlobalCompileLoss(CompileLoss):
    """A `CompileLoss` whose value on a replica is that replica's share of the global loss."""

    def __init__(self, *args: Any, batch: Batch, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._batch = batch

    @classmethod
    def of(cls, compiled: CompileLoss, batch: Batch) -> GlobalCompileLoss:
        """Return one for what `compile` was given."""
        names = {"reduction": compiled.reduction, "output_names": compiled.output_names}
        return cls(compiled._user_loss, compiled._user_loss_weights, **names, batch=batch)

    def build(self, y_true: Any, y_pred: Any) -> None:
        """Resolve the user's losses as Keras does, then let each return a share."""
        super().build(y_true, y_pred)
        trackers = self.metrics or [None] * len(self._flat_losses)
        self._flat_losses: list[Any] = [
            flat._replace(loss=ShareOfLoss(flat.loss, self._batch, tracker))
            for flat, tracker in zip(self._flat_losses, trackers, strict=True)
        ]


class ShareOfLoss:
    """A loss that returns this replica's share of its value over the whole batch.

    Args:
        loss: The user's `keras.losses.Loss`; it is called, never changed.
        batch: What there is to know of the batch and the replicas that share it.
        tracker: The `Mean` in which Keras tracks this output's own loss, or `None`.
    """

    def __init__(self, loss: Any, batch: Batch, tracker: Any = None) -> None:
        self.loss = loss
        self.name = loss.name
        self._batch = batch
        self._sum = batch.sum_over_replicas
        self._tracker = tracker
        if tracker is not None:
            # Keras would feed it the share as if it were the mean of a batch; `_track` feeds it instead.
            tracker.update_state = _ignore

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the share: the local sum over the global denominator; unreduced values stay unreduced."""
        values, mask = _weighted_values(self.loss, y_true, y_pred, sample_weight)
        if len(values.shape):
            values = self._batch.only_real(values)
        if self.loss.reduction in (None, "none"):
            size = keras.ops.shape(values)[0]
            self._track(self._global_mean(values), _number(size) * self._batch.part_that_counts())
            return values
        if len(values.shape) == 0 and self._batch.is_spread():
            share = self._share_of_scalar(y_true, y_pred, sample_weight)
        else:
            share = keras.ops.sum(values)
            denominator = self._denominator(values, mask, sample_weight)
            if denominator is not None:
                share = self._divided(share, keras.ops.cast(denominator, share.dtype))
        self._track(share, self._weight_of_batch(y_pred))
        return share

    def _share_of_scalar(self, y_true: Any, y_pred: Any, sample_weight: Any) -> Any:
        """Return the share of a loss that hides its examples behind one number: call it with all of them."""
        y_true, whole, sample_weight = self._batch.gather_examples((y_true, y_pred, sample_weight))
        replicas = self._batch.num_replicas()
        with self._batch.whole_view():
            return keras.ops.sum(self.loss(y_true, whole, sample_weight)) / replicas

    def _denominator(self, values: Any, mask: Any, sample_weight: Any) -> Any:
        local = self._local_sums(values, mask, sample_weight)
        return global_denominator(self.loss.reduction, local, self._sum, keras.ops.divide_no_nan)

    def _divided(self, share: Any, denominator: Any) -> Any:
        """Return the quotient; where nothing counts, zero, or the NaN of an infinity where Keras gives that."""
        if self.loss.reduction == "mean_with_sample_weight":
            return keras.ops.divide_no_nan(share, denominator)
        return share / keras.ops.where(keras.ops.equal(denominator, 0), keras.ops.ones_like(denominator), denominator)

    def _local_sums(self, values: Any, mask: Any, sample_weight: Any) -> LocalSums:
        count = self._number_of_elements(values)
        if self.loss.reduction == "mean_with_sample_weight" and not (mask is None and sample_weight is None):
            if sample_weight is not None:
                sample_weight = keras.ops.convert_to_tensor(sample_weight, dtype=values.dtype)
            if mask is not None:
                mask = self._batch.only_real(mask)
            weights = apply_mask(sample_weight, mask, dtype=values.dtype, reduction=self.loss.reduction)
            return LocalSums(count, weight=keras.ops.sum(weights))
        if mask is None:
            return LocalSums(count)
        return LocalSums(
            count,
            mask_total=self._number_of_elements(mask),
            mask_valid=keras.ops.sum(keras.ops.cast(self._batch.only_real(mask), "float32")),
        )

    def _global_mean(self, values: Any) -> Any:
        """Return this replica's share of the mean of `values` over all replicas."""
        count = self._sum([self._number_of_elements(values)])[0]
        return keras.ops.divide_no_nan(keras.ops.sum(values), keras.ops.cast(count, values.dtype))

    def _number_of_elements(self, values: Any) -> Any:
        """Return how many elements belong to examples: a Python float where that is static, else a tensor."""
        size = functools.reduce(operator.mul, keras.ops.shape(values), 1)
        return _number(size) * self._batch.part_that_counts()

    def _weight_of_batch(self, y_pred: Any) -> Any:
        """Return what a batch counts in Keras's tracker: its size where Keras knows it, else, as padded, 1."""
        rows = self._batch.known_examples(keras.tree.flatten(y_pred)[0].shape[0])
        return 1 / self._sum([1.0])[0] if rows is None else _number(rows)

    def _track(self, share: Any, weight: Any) -> None:
        """Track as Keras does on one device.

        The tracker's variables are summed over replicas when they are read, so every replica adds a part of the
        one value of the batch.
        """
        if self._tracker is None:
            return
        self._tracker.total.assign_add(share * self._sum([weight])[0])
        self._tracker.count.assign_add(weight)


def _ignore(*args: Any, **kwargs: Any) -> None:
    """Stand in for `update_state`."""


def _weighted_values(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Return the losses times weights and mask before any reduction, and the mask that was applied."""
    masks = [mask_of(y_pred)]

    def call_and_keep_mask(y_true: Any, y_pred: Any) -> Any:
        values = loss.call(y_true, y_pred)
        masks.append(mask_of(values))
        return values

    # A shallow copy: the user's object keeps its reduction. Keras's losses send copy.copy through a saved model,
    # which fails for a loss without get_config.
    unreduced: Any = object.__new__(type(loss))
    unreduced.__dict__.update(loss.__dict__)
    unreduced.reduction = None
    unreduced.call = call_and_keep_mask
    values = unreduced(y_true, y_pred, sample_weight)
    there = [mask for mask in masks if mask is not None]
    return values, (keras.ops.logical_and(*there) if len(there) == 2 else (there[0] if there else None))


def _number(size: Any) -> Any:
    """Return a size as a Python float where it is static, else as a float32 tensor."""
    return float(size) if isinstance(size, int) else keras.ops.cast(size, "float32")
