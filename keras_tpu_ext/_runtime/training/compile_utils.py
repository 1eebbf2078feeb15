"""The loss of which each replica returns its share, and properties of metrics, on any Keras."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from keras_tpu_ext._runtime.common.global_mean import LocalSums, global_denominator
from keras_tpu_ext._runtime.common.patches import install
from keras_tpu_ext._runtime.common.types import Metric, Tensor
from keras_tpu_ext._runtime.compat import keras, mask_of, ops, tree
from keras_tpu_ext._runtime.training.batch import Batch

_NEEDS_WHOLE_BATCH = "_kte_needs_whole_batch"


class LossShare:
    """A loss that returns this replica's share of its value over the whole batch.

    Each runtime's Keras has a subclass that overrides what differs: `_unreduced`, `_sum_of_weights` and, if it
    weights batches differently, `_weight_of_batch` and `_weight_of_values`.

    Args:
        loss: The user's `keras.losses.Loss`; it is called, never changed.
        batch: Facts about the batch and the replicas that share it.
        tracker: The `Mean` in which Keras tracks this output's own loss, or `None`.
    """

    def __init__(self, loss: Tensor, batch: Batch, tracker: Any = None) -> None:
        self.loss = loss
        self.name = loss.name
        self._batch = batch
        self._sum = batch.sum_over_replicas
        self._tracker = tracker
        self._mixing: dict[Any, bool] = {}
        if tracker is not None:
            # Keras would update it with the share as if it were the mean of a batch; `_track` updates it instead.
            install([(tracker, "a loss tracker's update_state", lambda stock: _ignore)])

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> Any:
        """Return the share: the local sum over the global denominator; unreduced values stay unreduced."""
        if self._batch.needs_gather() and self._mixes_examples(y_true, y_pred):
            return self._share_of_whole(y_true, y_pred, sample_weight)
        values, mask = self._weighted_values(y_true, y_pred, sample_weight)
        rank = rank_of(values)
        if rank:
            values = self._batch.zero_invalid_rows(values)
        if rank and self.loss.reduction in (None, "none"):
            self._track(self.global_mean(values), self._weight_of_values(values))
            return values
        if rank is None or (rank == 0 and self._batch.needs_gather()):
            return self._share_of_whole(y_true, y_pred, sample_weight)
        share = ops.sum(values)
        denominator = self._denominator(values, mask, sample_weight)
        if denominator is not None:
            share = self._divided(share, ops.cast(denominator, share.dtype))
        self._track(share, self._weight_of_batch(y_pred))
        return share

    def global_mean(self, values: Tensor) -> Any:
        """Return this replica's share of the mean of `values` over all replicas."""
        count = self._sum([self._number_of_elements(values)])[0]
        return ops.divide_no_nan(ops.sum(values), ops.cast(count, values.dtype))

    def _unreduced(self, call: Callable[[Any, Any], Any]) -> Any:
        """Return a copy of the user's loss that uses `call` and does not reduce."""
        # A shallow copy: the user's object keeps its reduction. For Keras's losses, copy.copy goes through a saved
        # model, which fails for a loss without get_config.
        unreduced: Any = object.__new__(type(self.loss))
        unreduced.__dict__.update(self.loss.__dict__)
        unreduced.call = call
        return unreduced

    def _sum_of_weights(self, values: Tensor, mask: Tensor, sample_weight: Tensor) -> Any:
        """Return the denominator of a mean with sample weights on this replica."""
        raise NotImplementedError

    def _weighted_values(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor) -> tuple[Any, Any]:
        """Return the losses times weights and mask before any reduction, and the mask that was applied."""
        masks = [mask_of(y_pred)]

        def call_and_keep_mask(y_true: Tensor, y_pred: Tensor) -> Any:
            values = self.loss.call(y_true, y_pred)
            masks.append(mask_of(values))
            return values

        values = self._unreduced(call_and_keep_mask)(y_true, y_pred, sample_weight)
        there = [mask for mask in masks if mask is not None]
        return values, (ops.logical_and(*there) if len(there) == 2 else (there[0] if there else None))

    def _share_of_whole(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor) -> Any:
        """Return the share of a loss that needs all examples together, by calling it with all of them."""
        y_true, whole, sample_weight = self._batch.gather_examples((y_true, y_pred, sample_weight))
        replicas = self._batch.num_replicas()
        with self._batch.whole_batch_view():
            values = self.loss(y_true, whole, sample_weight)
            mean = self.global_mean(values) if rank_of(values) else ops.sum(values)
        self._track(mean / replicas, self._weight_of_batch(y_pred))
        return ops.sum(values) / replicas

    def _mixes_examples(self, y_true: Tensor, y_pred: Tensor) -> bool:
        """Return whether a user-defined loss compares the examples of a batch; Keras's losses do not."""
        if _is_of_keras(type(self.loss)) and _is_of_keras(getattr(self.loss, "fn", self.loss)):
            return False
        if _is_of_keras(type(self.loss).__call__):
            specs = y_true, y_pred
            if specs_of(specs) not in self._mixing:
                self._mixing[specs_of(specs)] = self._batch.mixes_examples(self.loss.call, specs)
            return self._mixing[specs_of(specs)]
        return True  # it reduces by itself

    def _denominator(self, values: Tensor, mask: Tensor, sample_weight: Tensor) -> Any:
        local = self._local_sums(values, mask, sample_weight)
        return global_denominator(self.loss.reduction, local, self._sum, ops.divide_no_nan)

    def _divided(self, share: Tensor, denominator: Tensor) -> Any:
        """Return the quotient; if nothing counts, zero, or the NaN of an infinite loss where Keras returns NaN."""
        if self.loss.reduction == "mean_with_sample_weight":
            return ops.divide_no_nan(share, denominator)
        return share / ops.where(ops.equal(denominator, 0), ops.ones_like(denominator), denominator)

    def _local_sums(self, values: Tensor, mask: Tensor, sample_weight: Tensor) -> LocalSums:
        count = self._number_of_elements(values)
        if self.loss.reduction == "mean_with_sample_weight" and not (mask is None and sample_weight is None):
            return LocalSums(count, weight=self._sum_of_weights(values, mask, sample_weight))
        if mask is None:
            return LocalSums(count)
        return LocalSums(
            count,
            mask_total=self._number_of_elements(mask),
            mask_valid=ops.sum(ops.cast(self._batch.zero_invalid_rows(mask), "float32")),
        )

    def _number_of_elements(self, values: Tensor) -> Any:
        """Return the number of elements of examples: a Python float where that is static, else a tensor."""
        size = functools.reduce(operator.mul, ops.shape(values), 1)
        return number(size) * self._batch.valid_fraction()

    def _weight_of_batch(self, y_pred: Tensor) -> Any:
        """Return a batch's weight in Keras's loss tracker: its size if Keras knows it, else (if padded, say) 1."""
        rows = self._batch.static_examples(tree.flatten(y_pred)[0].shape[0])
        return 1 / self._sum([1.0])[0] if rows is None else number(rows)

    def _weight_of_values(self, values: Tensor) -> Any:
        """Return the loss tracker's weight for a batch whose losses are not reduced."""
        return number(ops.shape(values)[0]) * self._batch.valid_fraction()

    def _track(self, share: Tensor, weight: Tensor) -> None:
        """Update the loss tracker as Keras does on one device.

        The tracker's variables are summed over replicas when they are read, so every replica adds its part of the
        batch's value.
        """
        if self._tracker is None:
            return
        dtype = self._tracker.total.dtype
        share, of_all = ops.cast(share, dtype), ops.cast(self._sum([weight])[0], dtype)
        # Where every replica has the whole loss, one without examples must add none of it, even if it is infinite.
        self._tracker.total.assign_add(ops.where(ops.equal(of_all, 0), of_all, share * of_all))
        self._tracker.count.assign_add(ops.cast(weight, dtype))


def specs_of(tensors: Any) -> tuple[Any, ...]:
    """Return the known shapes, without the number of rows, and the dtypes of a structure of tensors."""
    return tuple((str(leaf.shape[1:]), str(leaf.dtype)) for leaf in tree.flatten(tensors) if leaf is not None)


def rank_of(values: Tensor) -> int | None:
    """Return the rank of a tensor, or `None` if TensorFlow does not know it, as after a squeeze."""
    try:
        return len(values.shape)
    except ValueError:
        return None


def number(size: Any) -> Any:
    """Return a size as a Python float where it is static, else as a float32 tensor."""
    return float(size) if isinstance(size, int) else ops.cast(size, "float32")


def _ignore(*args: Any, **kwargs: Any) -> None:
    """Stand in for `update_state`."""


def is_function(metric: Metric) -> bool:
    """Return whether a metric is the mean of a user's function, or of a loss, which may reduce by itself."""
    function = getattr(metric, "_fn", None)  # TensorFlow Addons has a wrapper of its own
    is_known = _is_of_keras(function) and not isinstance(function, keras.losses.Loss)
    return isinstance(metric, keras.metrics.Mean) and callable(function) and not is_known


def reduces_batch(metric: Metric, true: Tensor, predicted: Tensor) -> bool:
    """Return whether a metric is the mean of a function that returns one number per batch."""
    return is_function(metric) and not rank_of(metric._fn(true, predicted, **metric._fn_kwargs))


def needs_whole_batch(metric: Metric) -> bool:
    """Return whether a metric is updated by the user's code and may keep something other than sums.

    The class attribute `keeps_sums = True` declares that such a metric keeps only sums. A metric that creates its
    variables when it is updated is assumed to: the replica that is traced first finds none, and all must do the same.
    """
    if not hasattr(metric, _NEEDS_WHOLE_BATCH):
        owner = next((cls for cls in type(metric).__mro__ if "update_state" in vars(cls)), None)
        is_known = _is_of_keras(owner) or _is_of_addons(owner) or getattr(metric, "keeps_sums", False)
        setattr(metric, _NEEDS_WHOLE_BATCH, bool(metric.variables) and not is_known)
    return bool(getattr(metric, _NEEDS_WHOLE_BATCH))


def respects_weights(metric: Metric, predicted: Tensor) -> bool:
    """Return whether a weight of zero excludes a row from `metric`, and it takes one weight for each row."""
    if isinstance(metric, keras.metrics.MeanMetricWrapper):
        return _is_of_keras(type(metric)) and not is_function(metric)
    takes_rows = len(predicted.shape) <= 2 and not isinstance(metric, keras.metrics.IoU)
    return _is_of_keras(type(metric)) and (takes_rows or mask_of(predicted) is not None)


def _is_of_addons(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("tensorflow_addons.")


def _is_of_keras(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith(("keras.", "tf_keras."))
