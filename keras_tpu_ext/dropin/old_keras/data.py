"""Data as Keras 2 took it: the epochs of a `Sequence`, and the weights of examples by the names of outputs."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext.dropin.patching import Function, wrap

_KERAS = "keras.src.trainers"


def install() -> None:
    """Take old data."""
    wrap(
        {
            f"{_KERAS}.epoch_iterator.EpochIterator.reset": _without_end,
            f"{_KERAS}.compile_utils.CompileLoss.call": _weights_by_name,
            f"{_KERAS}.compile_utils.CompileMetrics.update_state": _weights_by_name,
            "keras_tpu_ext._runtime.keras3.compile_utils.ExactMetrics.update_state": _weights_by_name,
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


def _weights_by_name(stock: Function, self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    """Take the weights of a list of outputs in a dict, which need not have all names."""
    if isinstance(sample_weight, dict) and not isinstance(y_pred, dict) and self.output_names:
        weights = [sample_weight.get(name) for name in self.output_names]
        sample_weight = weights if isinstance(y_pred, (list, tuple)) else weights[0]
    return stock(self, y_true, y_pred, sample_weight)
