"""Keras 3's compiled loss, with each replica returning its share of the loss of the whole batch.

Private names of Keras that this module leans on (tests/_runtime/test_private_names.py watches them):
`trainers.compile_utils.CompileLoss` with `_flat_losses` (tuples with a field `loss`) and `metrics`;
`losses.loss.apply_mask`; the attribute `_keras_mask` of tensors.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras.src.losses.loss import apply_mask
from keras.src.trainers.compile_utils import CompileLoss

from keras_tpu_ext._runtime.global_mean import LocalSums, global_denominator

SumOverReplicas = Callable[[Sequence[Any]], list[Any]]


class GlobalCompileLoss(CompileLoss):
    """A `CompileLoss` whose value on a replica is that replica's share of the global loss."""

    def __init__(self, *args: Any, sum_over_replicas: SumOverReplicas, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sum_over_replicas = sum_over_replicas

    def build(self, y_true: Any, y_pred: Any) -> None:
        """Resolve the user's losses as Keras does, then let each return a share."""
        super().build(y_true, y_pred)
        trackers = self.metrics or [None] * len(self._flat_losses)
        self._flat_losses: list[Any] = [
            flat._replace(loss=ShareOfLoss(flat.loss, self._sum_over_replicas, tracker))
            for flat, tracker in zip(self._flat_losses, trackers, strict=True)
        ]


class ShareOfLoss:
    """A loss that returns this replica's share of its value over the whole batch.

    Args:
        loss: The user's `keras.losses.Loss`; it is called, never changed.
        sum_over_replicas: Sums a list of values over all replicas.
        tracker: The `Mean` in which Keras tracks this output's own loss, or `None`.
    """

    def __init__(self, loss: Any, sum_over_replicas: SumOverReplicas, tracker: Any = None) -> None:
        self.loss = loss
        self.name = loss.name
        self._sum = sum_over_replicas
        self._tracker = tracker
        if tracker is not None:
            # Keras would feed it the share as if it were the mean of a batch; `_track` feeds it instead.
            tracker.update_state = _ignore

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the share: the local sum over the global denominator; unreduced values stay unreduced."""
        values, mask = _weighted_values(self.loss, y_true, y_pred, sample_weight)
        if self.loss.reduction in (None, "none"):
            self._track(_global_mean(values, self._sum), keras.ops.shape(values)[0])
            return values
        if len(values.shape) == 0 and self.loss.reduction != "sum":
            share = self._share_of_one_number(values, y_pred)
        else:
            share = keras.ops.sum(values)
            denominator = self._denominator(values, mask, sample_weight)
            if denominator is not None:
                share = keras.ops.divide_no_nan(share, keras.ops.cast(denominator, share.dtype))
        self._track(share, keras.tree.flatten(y_pred)[0].shape[0])
        return share

    def _share_of_one_number(self, value: Any, y_pred: Any) -> Any:
        """Take a loss function's one number for a whole batch as the mean over its examples.

        It is weighted by the replica's examples, which is exact for a mean; a replica without any adds nothing.
        """
        examples = _number(keras.ops.shape(keras.tree.flatten(y_pred)[0])[0])
        weight = keras.ops.cast(keras.ops.divide_no_nan(examples, self._sum([examples])[0]), value.dtype)
        return keras.ops.where(weight > 0, value, 0) * weight

    def _denominator(self, values: Any, mask: Any, sample_weight: Any) -> Any:
        local = _local_sums(values, mask, sample_weight, self.loss)
        return global_denominator(self.loss.reduction, local, self._sum, keras.ops.divide_no_nan)

    def _track(self, share: Any, examples: Any) -> None:
        """Track as Keras does on one device: weighted by the batch size where Keras knows it, else by 1.

        The tracker's variables are summed over replicas when they are read, so every replica adds a part of the
        one value of the batch.
        """
        if self._tracker is None:
            return
        weight = 1 / self._sum([1.0])[0] if examples is None else _number(examples)
        self._tracker.total.assign_add(share * self._sum([weight])[0])
        self._tracker.count.assign_add(weight)


def _ignore(*args: Any, **kwargs: Any) -> None:
    """Stand in for `update_state`."""


def _weighted_values(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Return the losses times weights and mask before any reduction, and the mask that was applied."""
    masks = [_mask_of(y_pred)]

    def call_and_keep_mask(y_true: Any, y_pred: Any) -> Any:
        values = loss.call(y_true, y_pred)
        masks.append(_mask_of(values))
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


def _local_sums(values: Any, mask: Any, sample_weight: Any, loss: Any) -> LocalSums:
    count = _number_of_elements(values)
    if loss.reduction == "mean_with_sample_weight" and not (mask is None and sample_weight is None):
        if sample_weight is not None:
            sample_weight = keras.ops.convert_to_tensor(sample_weight, dtype=values.dtype)
        weights = apply_mask(sample_weight, mask, dtype=values.dtype, reduction=loss.reduction)
        return LocalSums(count, weight=keras.ops.sum(weights))
    if mask is None:
        return LocalSums(count)
    return LocalSums(
        count,
        mask_total=_number_of_elements(mask),
        mask_valid=keras.ops.sum(keras.ops.cast(mask, "float32")),
    )


def _global_mean(values: Any, sum_over_replicas: SumOverReplicas) -> Any:
    """Return this replica's share of the mean of `values` over all replicas."""
    count = sum_over_replicas([_number_of_elements(values)])[0]
    return keras.ops.divide_no_nan(keras.ops.sum(values), keras.ops.cast(count, values.dtype))


def _number_of_elements(values: Any) -> Any:
    """Return the size as a Python float where it is static, else as a tensor."""
    return _number(functools.reduce(operator.mul, keras.ops.shape(values), 1))


def _number(size: Any) -> Any:
    """Return a size as a Python float where it is static, else as a float32 tensor."""
    return float(size) if isinstance(size, int) else keras.ops.cast(size, "float32")


def _mask_of(tensor: Any) -> Any:
    return getattr(tensor, "_keras_mask", None)
