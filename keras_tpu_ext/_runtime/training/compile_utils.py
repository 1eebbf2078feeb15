"""The compiled loss, of which each replica returns its part, and metrics; and whose code these and layers are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from keras_tpu_ext._runtime.common.patches import attributes_restored, install
from keras_tpu_ext._runtime.common.types import Layer, Loss, Metric, Nest, Tensor
from keras_tpu_ext._runtime.compat import UNREDUCED, keras, mask_of, ops, tree, with_mask
from keras_tpu_ext._runtime.training.denominator import LossSum, loss_sum, number, recorded
from keras_tpu_ext._runtime.training.protocols import BatchOfStep

# Keras's layers that mix the examples of a batch; ours handle padded rows.
_MIXING = ("MixUp", "CutMix", "RandAugment", "AugMix", "MelSpectrogram")
_NEEDS_WHOLE_BATCH = "_kte_needs_whole_batch"


class LocalLoss:
    """A loss that returns this replica's part of its value over the whole batch.

    Args:
        loss: The user's `keras.losses.Loss`; it is called, never changed.
        batch: Facts about the batch and the replicas that share it.
        tracker: The `Mean` in which Keras tracks this output's own loss, or `None`.
    """

    def __init__(self, loss: Loss, batch: BatchOfStep, tracker: Metric | None = None) -> None:
        self.loss = loss
        self.name = loss.name
        self._batch = batch
        self._sum = batch.sum_over_replicas
        self._tracker = tracker
        self._mixing: dict[tuple[object, ...], bool] = {}
        if tracker is not None:
            # Keras would update it with the local loss as if it were the mean of a batch; `_track` updates it.
            install([(tracker, "a loss tracker's update_state", lambda stock: _ignore)])

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Return the local loss, and record its sum and denominator; unreduced values stay unreduced."""
        if self._batch.needs_gather() and self._mixes_examples(y_true, y_pred):
            return self._from_whole_batch(y_true, y_pred, sample_weight)
        values, mask, is_reduced = self._weighted_values(y_true, y_pred, sample_weight)
        rank = rank_of(values)
        if rank:
            values = self._batch.zero_invalid_rows(values)
        if rank and self.loss.reduction in (None, "none"):
            self._track(self._local_mean(values), self._weight_of_values(values))
            return recorded(LossSum(values)).total
        if rank is None or (rank == 0 and self._batch.needs_gather()):
            return self._from_whole_batch(y_true, y_pred, sample_weight)
        loss = loss_sum(self.loss.reduction, values, mask, sample_weight, self._batch)
        local = loss.local()
        recorded(LossSum(local) if is_reduced or not rank else loss)
        self._track(local, self._weight_of_batch(y_pred))
        return local

    def _unreduced(self, call: Callable[[Any, Any], Any]) -> Any:
        """Return a copy of the user's loss that uses `call` and does not reduce."""
        # A shallow copy: the user's object keeps its reduction. For Keras's losses, copy.copy goes through a saved
        # model, which fails for a loss without get_config.
        unreduced: Any = object.__new__(type(self.loss))
        unreduced.__dict__.update(self.loss.__dict__)
        unreduced.call, unreduced.reduction = call, UNREDUCED
        return unreduced

    def _local_mean(self, values: Tensor) -> Tensor:
        """Return this replica's part of the mean of `values` over all replicas."""
        return loss_sum("mean", values, None, None, self._batch).local()

    def _weighted_values(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None, bool]:
        """Return the losses times weights and mask, the mask that was applied, and if the loss reduces by itself."""
        masks = [mask_of(y_pred)]
        call = self.loss.call if self._is_known() else self._batch.on_some_row(self.loss.call)
        ranks: list[int | None] = []

        def call_and_keep_mask(y_true: Tensor, y_pred: Tensor) -> Tensor:
            values: Tensor = call(y_true, y_pred)
            masks.append(mask_of(values))
            ranks.append(rank_of(values))
            return values

        values = self._unreduced(call_and_keep_mask)(y_true, y_pred, sample_weight)
        there = [mask for mask in masks if mask is not None]
        mask = ops.logical_and(*there) if len(there) == 2 else (there[0] if there else None)
        return values, mask, not (ranks and all(ranks))

    def _from_whole_batch(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None) -> Tensor:
        """Return the local part of a loss that needs all examples together, by calling it with all of them."""
        y_true, whole, sample_weight = self._batch.gather_examples((y_true, y_pred, sample_weight))
        replicas = self._batch.num_replicas()
        with self._batch.whole_batch_view():
            values = self.loss(y_true, whole, sample_weight)
            mean = self._local_mean(values) if rank_of(values) else ops.sum(values)
        total, weight = ops.sum(values) / replicas, self._weight_of_batch(y_pred)
        if rank_of(values) and self.loss.reduction in (None, "none"):
            total = self._spread(total, mean, tree.flatten(y_pred)[0])
            weight = self._weight_of_values(total)
        self._track(mean / replicas, weight)
        return recorded(LossSum(total)).total

    def _spread(self, total: Tensor, mean: Tensor, y_pred: Tensor) -> Tensor:
        """Return a number for each row of an unreduced loss: their mean is `mean`, their gradient that of `total`."""
        first = (slice(None), *(0 for _ in y_pred.shape[1:]))
        ones = ops.cast(self._batch.zero_invalid_rows(ops.ones_like(y_pred[first])), total.dtype)
        part = (total - ops.stop_gradient(total)) / ops.maximum(ops.sum(ones), 1)
        return ones * (ops.stop_gradient(mean) + part)

    def _is_known(self) -> bool:
        """Return whether a loss is one of Keras that works on each example by itself, and on none."""
        function = getattr(self.loss, "fn", self.loss)
        is_special = _has_axis(self.loss) or getattr(function, "__name__", "") in ("circle", "ctc")
        return is_of_keras(type(self.loss)) and is_of_keras(function) and not is_special

    def _mixes_examples(self, y_true: Tensor, y_pred: Tensor) -> bool:
        """Return whether a loss compares the examples of a batch; of Keras's losses few do, by an axis."""
        if self._is_known():
            return False
        if is_of_keras(type(self.loss).__call__):
            specs = y_true, y_pred
            if specs_of(specs) not in self._mixing:
                with attributes_restored(self.loss):
                    self._mixing[specs_of(specs)] = not self._batch.is_row_by_row(self.loss.call, specs)
            return self._mixing[specs_of(specs)]
        return True  # it reduces by itself

    def _weight_of_batch(self, y_pred: Tensor) -> Tensor | float:
        """Return a batch's weight in Keras's loss tracker: its size if Keras knows it, else (if padded, say) 1."""
        rows = self._batch.static_examples(tree.flatten(y_pred)[0].shape[0])
        return 1 / self._sum([1.0])[0] if rows is None else number(rows)

    def _weight_of_values(self, values: Tensor) -> Tensor | float:
        """Return the loss tracker's weight for a batch whose losses are not reduced."""
        return number(ops.shape(values)[0]) * self._batch.valid_fraction()

    def _track(self, local: Tensor, weight: Tensor | float) -> None:
        """Add this replica's part to the loss tracker, whose variables are summed over replicas when read."""
        if self._tracker is None:
            return
        dtype = self._tracker.total.dtype
        local, of_all = ops.cast(local, dtype), ops.cast(self._sum([weight])[0], dtype)
        # Where every replica has the whole loss, one without examples must add none of it, even if it is infinite.
        self._tracker.total.assign_add(ops.where(ops.equal(of_all, 0), of_all, local * of_all))
        self._tracker.count.assign_add(ops.cast(weight, dtype))


def specs_of(tensors: Nest) -> tuple[tuple[str, str], ...]:
    """Return the known shapes, without the number of rows, and the dtypes of a structure of tensors."""
    return tuple((str(leaf.shape[1:]), str(leaf.dtype)) for leaf in tree.flatten(tensors) if leaf is not None)


def rank_of(values: Tensor) -> int | None:
    """Return the rank of a tensor, or `None` if TensorFlow does not know it, as after a squeeze."""
    try:
        return len(values.shape)
    except ValueError:
        return None


def _ignore(*args: object, **kwargs: object) -> None:
    """Stand in for `update_state`."""


def _has_axis(thing: Loss | Metric) -> bool:
    """Return whether a loss or a metric of Keras has an axis, other than the last, that may be that of the rows."""
    return getattr(thing, "_fn_kwargs", {}).get("axis", -1) != -1


def is_function(metric: Metric) -> bool:
    """Return whether a metric is the mean of a user's function, or of a loss, which may reduce by itself."""
    function = getattr(metric, "_fn", None)  # TensorFlow Addons has a wrapper of its own
    is_known = is_of_keras(function) and not isinstance(function, keras.losses.Loss) and not _has_axis(metric)
    return isinstance(metric, keras.metrics.Mean) and callable(function) and not is_known


def reduces_batch(metric: Metric, batch: BatchOfStep, true: Tensor, predicted: Tensor) -> bool:
    """Return whether a metric is the mean of a function that returns one number per batch, or mixes its rows."""
    if not is_function(metric):
        return False

    def values(true: Tensor, predicted: Tensor) -> Tensor:
        result: Tensor = metric._fn(true, predicted, **metric._fn_kwargs)
        return result

    return not rank_of(values(true, predicted)) or not batch.is_row_by_row(values, (true, predicted))


def needs_whole_batch(metric: Metric, batch: BatchOfStep, *specs: Tensor | None) -> bool:
    """Return whether an update of a metric with `specs` runs the user's code and may keep other than sums of rows.

    The class attribute `keeps_sums = True` declares that such a metric keeps only sums. A metric that creates its
    variables when it is updated is assumed to: the replica that is traced first finds none, and all must do the same.
    """
    found, key = vars(metric).get(_NEEDS_WHOLE_BATCH, {}), specs_of(specs)
    if key not in found:
        needs = False
        if has_own_update(metric) and metric.variables:
            with attributes_restored(metric):
                needs = not batch.keeps_sums(metric.update_state, specs, metric.variables)
        vars(metric)[_NEEDS_WHOLE_BATCH] = found = {**found, key: needs}
    return bool(found[key])


def has_own_update(metric: Metric) -> bool:
    """Return whether a metric is updated by the user's code, which may keep anything."""
    owner = next((cls for cls in type(metric).__mro__ if "update_state" in vars(cls)), None)
    return not (is_of_keras(owner) or _is_of_addons(owner) or getattr(metric, "keeps_sums", False))


def respects_weights(metric: Metric, predicted: Tensor) -> bool:
    """Return whether a weight of zero excludes a row from `metric`, and it takes one weight for each row."""
    if isinstance(metric, keras.metrics.MeanMetricWrapper):
        return is_of_keras(type(metric)) and not is_function(metric)
    takes_rows = len(predicted.shape) <= 2 and not isinstance(metric, keras.metrics.IoU)
    return is_of_keras(type(metric)) and (takes_rows or mask_of(predicted) is not None)


def runs_own_code(metric: Metric) -> bool:
    """Return whether an update of a metric runs the user's code."""
    return is_function(metric) or has_own_update(metric)


def update_metric(
    metric: Metric,
    batch: BatchOfStep,
    true: Tensor,
    predicted: Tensor,
    weight: Tensor | None,
    *,
    reduces: Callable[[Metric, BatchOfStep, Tensor, Tensor], bool] = reduces_batch,
) -> None:
    """Update a metric with the examples of a batch that may be padded, or split over replicas.

    Keras's own metrics give a padded row the weight zero, which keeps every shape static. Other metrics may use
    weights in any way, or not at all; they get only the rows of examples.

    Args:
        metric: The metric.
        batch: The batch.
        true: Targets.
        predicted: Predictions, with their mask.
        weight: The weight of each row, or `None`.
        reduces: Says as `reduces_batch` whether the metric needs the rows of all replicas at once, and on each.
    """
    takes_whole = reduces(metric, batch, true, predicted)
    keeps_whole = not takes_whole and batch.num_replicas() > 1
    if takes_whole or (keeps_whole and needs_whole_batch(metric, batch, true, predicted, weight)):
        true, whole, weight = batch.gather_examples((true, predicted, weight))
        state = contextlib.nullcontext() if takes_whole else batch.whole_state(lambda: [metric])
        with state, batch.whole_batch_view():
            metric.update_state(true, whole, weight)
    elif not batch.is_padded():
        metric.update_state(true, predicted, weight)
    elif respects_weights(metric, predicted) and batch.valid_rows_of(predicted) is not None:
        # Weight one for every example, in the shape of the mask if there is one: Keras multiplies the two.
        mask = mask_of(predicted)
        ones = batch.valid_rows_of(predicted) if mask is None else ops.ones_like(mask)
        weight = ops.cast(ones if weight is None else weight, "float32")
        metric.update_state(true, predicted, batch.zero_invalid_rows(weight))
    else:
        select = batch.select_valid_rows
        predicted = with_mask(select(predicted), select(mask_of(predicted)))
        metric.update_state(select(true), predicted, select(weight))


def _is_of_addons(thing: object) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("tensorflow_addons.")


def is_of_keras(thing: object) -> bool:
    """Return whether Keras defines a class or a function."""
    return str(getattr(thing, "__module__", "")).startswith(("keras.", "tf_keras."))


def is_overridden(model_class: type, name: str) -> bool:
    """Return whether a method of a model is that of a user's class, and not of this package."""
    owner = next(base for base in model_class.__mro__ if name in vars(base))
    return not owner.__module__.startswith("keras_tpu_ext.")


def layer_is_known(layer: Layer) -> bool:
    """Return whether a layer is Keras's or this package's, and known to look at single examples."""
    functions = [layer.activity_regularizer, getattr(layer, "activation", None)]
    of_layer = [type(layer), *(function for function in functions if function is not None)]
    return (
        all(_is_known(thing) for thing in of_layer)
        and not isinstance(layer, keras.layers.Lambda)
        and not isinstance(layer.activity_regularizer, keras.regularizers.OrthogonalRegularizer)
        and not (type(layer).__name__ in _MIXING and is_of_keras(type(layer)))
        and 0 not in tree.flatten(getattr(layer, "axis", None))
        and not _pads_to_longest(layer)
    )


def _is_known(thing: object) -> bool:
    # An operation layer of Keras 2 may run any operation of TensorFlow.
    return is_known(thing) and not str(getattr(thing, "__module__", "")).endswith(".tf_op_layer")


def is_known(thing: object) -> bool:
    """Return whether a class or a function is that of Keras or of this package."""
    return is_of_keras(thing) or str(getattr(thing, "__module__", "")).startswith("keras_tpu_ext.")


def _pads_to_longest(layer: Layer) -> bool:
    """Return whether a layer of Keras pads each text to the longest of the batch."""
    if not isinstance(layer, keras.layers.TextVectorization):
        return False
    config = layer.get_config()
    return config["output_mode"] == "int" and config["output_sequence_length"] is None
