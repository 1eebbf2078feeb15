"""Metrics as Keras 2 had them: their arguments, `reset_states`, their names, one flat list for several outputs."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

import keras
from keras import ops

from keras_tpu_ext.dropin.old_keras.losses import expanded, is_of_keras
from keras_tpu_ext.dropin.patching import Function, add, wrap
from keras_tpu_ext.dropin.report import mapped, means_old, told

_DTYPE = re.compile(r"(mixed_)?(b?float|u?int)\d+")
_ADD_WEIGHT = ("name", "shape", "aggregation", "synchronization", "initializer", "dtype")  # Keras 2's order


def install() -> None:
    """Make old metrics work."""
    metric = "keras.metrics.Metric"
    add(keras.metrics.Metric, "reset_states", _reset_states)
    wrap(
        {
            f"{metric}.__init__": _metric,
            f"{metric}.add_weight": _add_weight,
            f"{metric}.reset_state": _reset_state,
            "keras.src.metrics.reduction_metrics.reduce_to_samplewise_values": _weighted_number,
            "keras.src.trainers.compile_utils.get_metric": _get_metric,
        }
    )


def as_then(metrics: Any, outputs: list[str] | None) -> Any:
    """Return the metrics of `compile` so that Keras 3 calls, names and applies them as Keras 2 did.

    Args:
        metrics: What `compile` was given.
        outputs: The names of the model's outputs, if it has any yet.
    """
    if metrics is None or isinstance(metrics, dict):
        return metrics
    if not isinstance(metrics, (list, tuple)):
        metrics = [metrics]
    count = len(outputs or ())
    if count > 1 and not any(isinstance(of, (list, tuple, dict)) or of is None for of in metrics):
        what, then = "one list of metrics for several outputs", "each metric for each output"
        if len(metrics) != count:  # which Keras 3 refuses
            told(what, then)
        elif not means_old(what, then):
            return metrics
        return [metrics, *([_copied(metric) for metric in metrics] for _ in range(1, count))]
    return metrics


def _copied(metric: Any) -> Any:
    return metric.from_config(metric.get_config()) if isinstance(metric, keras.metrics.Metric) else metric


def _get_metric(stock: Function, identifier: Any, y_true: Any, y_pred: Any) -> Any:
    """Name a metric as Keras 2 did, and give it labels as Keras 2 did, with a dimension more where they need it."""
    if isinstance(identifier, str) and identifier[:1].isupper():
        named = keras.metrics.get(identifier)
        if means_old(f"the metric {identifier!r}", f"the name {named.name!r}"):
            identifier = named
    if isinstance(identifier, keras.losses.Loss):
        identifier = keras.metrics.MeanMetricWrapper(identifier, name=identifier.name)
    metric = stock(identifier, y_true, y_pred)
    name = identifier.__name__ if inspect.isfunction(identifier) else metric.name
    if name != metric.name and means_old(f"the metric {name}", f"this name, and not {metric.name!r}"):
        metric.name = name
    if "update_state" not in vars(metric):
        update, of_keras = metric.update_state, is_of_keras(getattr(metric, "_fn", type(metric)))

        @functools.wraps(update)
        def update_state(y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
            return update(expanded(y_true, y_pred, of_keras=of_keras), y_pred, *args, **kwargs)

        metric.__dict__["update_state"] = update_state
    return metric


def _weighted_number(stock: Function, values: Any, sample_weight: Any, *args: Any, **kwargs: Any) -> Any:
    """Let one number of a whole batch have the weight of the batch."""
    if getattr(sample_weight, "shape", ()) and not getattr(values, "shape", True):
        values = ops.broadcast_to(values, sample_weight.shape)
    return stock(values, sample_weight, *args, **kwargs)


def _metric(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Take `Metric(name, dtype)`, the order of Keras 2, and its other arguments."""
    if args and isinstance(args[0], str) and not _DTYPE.fullmatch(args[0]):
        mapped("Metric(name)", "Metric(name=)")
        kwargs.update(zip(("name", "dtype"), args, strict=False))
        args = ()
    for name in ("dynamic", "trainable"):
        kwargs.pop(name, None)
    init(self, *args, **kwargs)


def _add_weight(stock: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    if args and isinstance(args[0], str):
        mapped("metric.add_weight(name)", "add_weight(name=)")
        kwargs.update(zip(_ADD_WEIGHT, args, strict=False))
        args = ()
    for name in ("aggregation", "synchronization", "trainable"):
        kwargs.pop(name, None)
    kwargs["initializer"] = kwargs.get("initializer") or "zeros"
    return stock(self, *args, **kwargs)


def _reset_states(self: Any) -> None:
    """Reset a metric, by the old name; a user's own method calls it as that of its parent."""
    mapped("metric.reset_states()", "reset_state()")
    if type(self).reset_states is _reset_states:
        self.reset_state()
    else:
        keras.metrics.Metric.reset_state.__wrapped__(self)


def _reset_state(stock: Function, self: Any) -> None:
    """Call a user's own `reset_states`, which Keras 3 would not."""
    if type(self).reset_states is _reset_states:
        stock(self)
    else:
        mapped("a metric's own reset_states", "reset_state()")
        self.reset_states()
