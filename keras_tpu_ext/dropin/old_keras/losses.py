"""Losses as Keras 2 called them: reductions by their old names, and labels in their own type and rank.

Keras 2 gave a loss of the user's labels with a dimension more, if they had one and the predictions two, and
whole-number labels as they were. Keras 3 casts labels to floats, and adds no dimension for a class of the user's.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import keras
from keras import ops, tree
from keras.src.legacy.losses import Reduction

from keras_tpu_ext.dropin.patching import Function, add, wrap
from keras_tpu_ext.dropin.report import is_old_program, mapped, means_old


class _Labels(threading.local):
    """The types of labels that a loss which is being called was given."""

    dtypes: list[str]

    def __init__(self) -> None:
        self.dtypes = []


_LABELS = _Labels()


def install() -> None:
    """Make old losses work."""
    wrap(
        {
            "keras.src.losses.loss.standardize_reduction": _standardize_reduction,
            "keras.losses.Loss.__init__": _loss,
            "keras.losses.Loss.__call__": _keeping_dtype,
        }
    )
    add(keras.losses, "Reduction", Reduction)  # as `tf.keras.losses` has it


def as_then(loss: Any) -> Any:
    """Return a loss that gets labels as Keras 2 gave them; one of Keras's own, a name or `None` as it is."""
    if isinstance(loss, keras.losses.Loss):
        if not is_of_keras(type(loss).call) and "call" not in vars(loss):
            loss.call = _on_old_labels(loss.call)
        return loss
    if callable(loss) and not isinstance(loss, type) and not is_of_keras(loss):
        return _on_old_labels(loss)
    return loss


def of_each_output(names: list[str], loss: Any, kwargs: dict[str, Any]) -> Any:
    """Return the losses of a model with several outputs, in their order, and let `loss_weights=` be in it, too."""
    weights = kwargs.get("loss_weights")
    if isinstance(loss, dict) and loss.keys() < {*names}:
        mapped("loss= of some outputs", "None for the others")
        loss = [loss.get(name) for name in names]
    elif isinstance(weights, (dict, list, tuple)) and not tree.is_nested(loss):
        mapped("one loss and loss_weights=", "a loss for each output")
        loss = [loss] * len(names)
    elif (
        isinstance(weights, dict)
        and not isinstance(loss, dict)  # Keras 3 sorts such weights by name
        and not means_old("loss_weights= by name, of losses in a list", "each the weight of its output")
    ):
        return loss
    if isinstance(weights, dict) and weights.keys() <= {*names}:
        kwargs["loss_weights"] = [weights.get(name, 1.0) for name in names]
    return loss


def is_of_keras(function: Any) -> bool:
    """Return whether a function or class is Keras's own."""
    module = getattr(function, "__module__", "") or ""
    return module.split(".")[0] == "keras"


def expanded(y_true: Any, y_pred: Any, *, of_keras: bool = False) -> Any:
    """Return labels with a dimension more, if they have one and the predictions two; Keras's code takes both."""
    ranks = [len(getattr(value, "shape", ())) for value in (y_true, y_pred)]
    if ranks == [1, 2] and (of_keras or means_old("labels of one dimension", "two for a function of the program's")):
        return ops.expand_dims(y_true, -1)
    return y_true


def _on_old_labels(function: Function) -> Function:
    @functools.wraps(function)
    def on_old_labels(y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = _LABELS.dtypes[-1] if _LABELS.dtypes else ""
        if "int" in dtype and is_old_program() and not tree.is_nested(y_true):
            y_true = ops.cast(y_true, dtype)
        return function(expanded(y_true, y_pred), y_pred, *args, **kwargs)

    vars(on_old_labels).pop("__wrapped__", None)
    return on_old_labels


def _keeping_dtype(call: Function, self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    leaves = tree.flatten(y_true)
    _LABELS.dtypes.append(keras.backend.standardize_dtype(leaves[0].dtype) if hasattr(leaves[0], "dtype") else "")
    try:
        return call(self, y_true, y_pred, sample_weight)
    finally:
        _LABELS.dtypes.pop()


def _standardize_reduction(stock: Function, reduction: Any) -> Any:
    reduction = getattr(reduction, "value", reduction)
    if isinstance(reduction, str) and reduction.lower() == "auto":
        mapped("Reduction.AUTO", "sum_over_batch_size")
        return "sum_over_batch_size"
    return stock(reduction.lower() if isinstance(reduction, str) else reduction)


def _loss(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Take `Loss(reduction, name)`, the order of Keras 2."""
    if args and args[0] in Reduction.all():
        mapped("Loss(reduction, name)", "Loss(reduction=, name=)")
        kwargs.update(zip(("reduction", "name"), args, strict=False))
        args = ()
    init(self, *args, **kwargs)
