"""Data as Keras 2 took it: the epochs of a `Sequence`, and targets and weights by the names of outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import tree

from keras_tpu_ext.dropin.old_keras import masks
from keras_tpu_ext.dropin.patching import Function, wrap
from keras_tpu_ext.dropin.report import mapped

_KERAS = "keras.src.trainers"


def install() -> None:
    """Take old data."""
    wrap(
        {
            f"{_KERAS}.epoch_iterator.EpochIterator.reset": _without_end,
            f"{_KERAS}.data_adapters.generator_data_adapter.GeneratorDataAdapter.__init__": _of_tuples,
            f"{_KERAS}.data_adapters.array_data_adapter.ArrayDataAdapter.__init__": _with_all_weights,
            f"{_KERAS}.compile_utils.CompileLoss.call": _by_name,
            f"{_KERAS}.compile_utils.CompileMetrics.update_state": _by_name,
            "keras_tpu_ext._runtime.keras3.compile_utils.ExactMetrics.update_state": _by_name,
        }
    )


def _without_end(stock: Function, self: Any) -> None:
    """Begin anew without telling a `Sequence` of the end of an epoch, as Keras 3 does before the first one."""
    of_sequence = vars(getattr(self.data_adapter, "py_dataset", self))
    of_sequence["on_epoch_end"] = lambda: None
    try:
        stock(self)
    finally:
        del of_sequence["on_epoch_end"]


def _of_tuples(stock: Function, self: Any, generator: Any) -> None:
    """Take a generator of inputs alone, as `predict` is given, and of lists."""
    stock(self, (tuple(one) if isinstance(one, (tuple, list)) else (one,) for one in generator))


def _with_all_weights(
    stock: Function, self: Any, x: Any, y: Any = None, sample_weight: Any = None, *args: Any, **kwargs: Any
) -> None:
    """Let the examples count fully for outputs that have no weights, where others have."""
    if isinstance(y, dict) and isinstance(sample_weight, dict) and sample_weight.keys() < y.keys():
        mapped("sample_weight= of some outputs", "ones for the others")
        ones = np.ones(len(next(iter(sample_weight.values()))), "float32")
        sample_weight = {name: sample_weight.get(name, ones) for name in y}
    stock(self, x, y, sample_weight, *args, **kwargs)


def _by_name(stock: Function, self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    """Take the weights of outputs in a dict, which need not have all names, and the target of one output."""
    y_pred = tree.map_structure(masks.with_mask, y_pred)
    names = [] if isinstance(y_pred, dict) else self.output_names
    if names and isinstance(sample_weight, dict):
        weights = [sample_weight.get(name) for name in names]
        sample_weight = weights if isinstance(y_pred, (list, tuple)) else weights[0]
    if names and isinstance(y_true, dict) and not isinstance(y_pred, (list, tuple)):
        y_true = y_true.get(names[0], y_true)
    return stock(self, y_true, y_pred, sample_weight)
