"""Keras 2's progress bar averages over an epoch whatever is no metric of the model."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from keras_tpu_ext._runtime.compat.keras2 import keras

_AS_THEY_ARE: set[str] = set()
_Logger: Any = keras.callbacks.ProgbarLogger


def show_as_they_are(names: Iterable[str]) -> None:
    """Let progress bars show the last value of the log keys `names` and not their average; for good."""
    if not _AS_THEY_ARE:
        _Logger.on_epoch_begin = _with_names(_Logger.on_epoch_begin)
    _AS_THEY_ARE.update(names)


def _with_names(stock: Any) -> Any:
    @functools.wraps(stock)
    def on_epoch_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.stateful_metrics = {*self.stateful_metrics, *_AS_THEY_ARE}
        return stock(self, *args, **kwargs)

    return on_epoch_begin
