"""Metrics as Keras 2 had them: their arguments, `reset_states`, their names, one flat list for several outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import tree
from keras.src.trainers import compile_utils

from keras_tpu_ext.dropin import patching
from keras_tpu_ext.dropin.old_keras import spellings
from keras_tpu_ext.dropin.old_keras.losses import expanded, is_of_keras
from keras_tpu_ext.dropin.report import mapped, means_old, told

Method = Callable[..., Any]

_DTYPES = ("float", "bfloat", "mixed", "int")
_ADD_WEIGHT = ("name", "shape", "aggregation", "synchronization", "initializer", "dtype")  # Keras 2's order


def install() -> None:
    """Make old metrics work."""
    metric = keras.metrics.Metric
    stock_reset = metric.reset_state
    patching.add(metric, "reset_states", _reset_states(stock_reset))
    spellings.replace(metric, "keras.metrics.Metric.__init__", _metric)
    spellings.replace(metric, "keras.metrics.Metric.add_weight", _add_weight)
    spellings.replace(metric, "keras.metrics.Metric.reset_state", _reset_state)
    spellings.replace(compile_utils, "keras.src.trainers.compile_utils.get_metric", _get_metric)


def as_then(metrics: Any, outputs: list[str] | None) -> Any:
    """Return the metrics of `compile` so that Keras 3 calls, names and applies them as Keras 2 did.

    Args:
        metrics: What `compile` was given.
        outputs: The names of the model's outputs, if it has any yet.
    """
    if metrics is None:
        return None
    if not isinstance(metrics, (list, tuple, dict)):
        metrics = [metrics]
    count = len(outputs or ())
    if isinstance(metrics, dict):
        return metrics
    if count > 1 and not any(isinstance(of, (list, tuple, dict)) or of is None for of in metrics):
        what, then = "one list of metrics for several outputs", "each metric for each output"
        if len(metrics) != count:  # which Keras 3 refuses
            told(what, then)
        elif not means_old(what, then):
            return metrics
        return [[_for_output(metric, output) for metric in metrics] for output in range(count)]
    return metrics


def _for_output(metric: Any, output: int) -> Any:
    """Return a metric for one of several outputs: a copy of an object, from the second output on."""
    if output and isinstance(metric, keras.metrics.Metric):
        return type(metric).from_config(metric.get_config())
    return metric


def _get_metric(stock: Method) -> Method:
    """Name a metric as Keras 2 did, and give it labels as Keras 2 did, with a dimension more where they need it."""

    def get_metric(identifier: Any, y_true: Any, y_pred: Any) -> Any:
        if isinstance(identifier, str) and identifier[:1].isupper():
            named = keras.metrics.get(identifier)
            if means_old(f"the metric {identifier!r}", f"the name {named.name!r}"):
                identifier = named
        if isinstance(identifier, keras.losses.Loss):
            identifier = keras.metrics.MeanMetricWrapper(identifier, name=identifier.name)
        metric = stock(identifier, y_true, y_pred)
        if "update_state" not in vars(metric):
            of_keras = is_of_keras(getattr(metric, "_fn", type(metric)))
            metric.__dict__["update_state"] = _on_old_labels(metric.update_state, of_keras)
        return metric

    return get_metric


def _on_old_labels(update: Method, of_keras: bool) -> Method:
    @functools.wraps(update)
    def on_old_labels(y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
        if not tree.is_nested(y_true) and not tree.is_nested(y_pred):
            y_true = expanded(y_true, y_pred, of_keras=of_keras)
        return update(y_true, y_pred, *args, **kwargs)

    return on_old_labels


def _metric(init: Method) -> Method:
    """Take `Metric(name, dtype)`, the order of Keras 2, and its other arguments."""

    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        if args and isinstance(args[0], str) and not args[0].startswith(_DTYPES):
            mapped("Metric(name)", "Metric(name=)")
            kwargs.update(zip(("name", "dtype"), args, strict=False))
            args = ()
        for name in ("dynamic", "trainable"):
            kwargs.pop(name, None)
        init(self, *args, **kwargs)

    return initialize


def _add_weight(stock: Method) -> Method:
    def add_weight(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], str):
            mapped("metric.add_weight(name)", "add_weight(name=)")
            kwargs.update(zip(_ADD_WEIGHT, args, strict=False))
            args = ()
        for name in ("aggregation", "synchronization", "trainable"):
            kwargs.pop(name, None)
        if kwargs.get("initializer", "zeros") is None or "initializer" not in kwargs:
            kwargs["initializer"] = "zeros"
        return stock(self, *args, **kwargs)

    return add_weight


def _reset_states(stock_reset: Method) -> Method:
    """Return `Metric.reset_states`, the old name; a user's own one calls it as that of its parent."""

    def reset_states(self: Any) -> None:
        mapped("metric.reset_states()", "reset_state()")
        if type(self).reset_states is keras.metrics.Metric.reset_states:
            self.reset_state()
        else:
            stock_reset(self)

    return reset_states


def _reset_state(stock: Method) -> Method:
    """Call a user's own `reset_states`, which Keras 3 would not."""

    def reset_state(self: Any) -> None:
        if type(self).reset_states is keras.metrics.Metric.reset_states:
            stock(self)
        else:
            mapped("a metric's own reset_states", "reset_state()")
            self.reset_states()

    return reset_state
