"""Which of the log keys that this package's callbacks add are shown in progress bars: a few, by short names."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from keras_tpu_ext._runtime.common.patches import install
from keras_tpu_ext._runtime.compat import keras

_MOST_SHORT = 3
# By log key: its name in progress bars, or `None` to hide it.
_names: dict[str, str | None] = {}


def show_in_progress_bar(names: Mapping[str, str | None]) -> None:
    """Let progress bars show log keys by other names from now on, without averaging them.

    Of the renamed keys, a progress bar shows the first three.

    Args:
        names: For each key the name to show it by, or `None` to hide it.
    """
    if not _names:
        install([(keras.callbacks.ProgbarLogger, "keras.callbacks.ProgbarLogger.on_epoch_begin", _with_names)])
    _names.update(names)


def _with_names(stock: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(stock)
    def on_epoch_begin(self: Any, *args: object, **kwargs: object) -> None:
        stock(self, *args, **kwargs)
        bar = self.progbar
        shown = {name for name in _names.values() if name is not None}
        # Keras 2 keeps its own set, and passes it on at each batch. From Keras 3.15 on nothing is averaged.
        for owner in (self, bar):
            if getattr(owner, "stateful_metrics", None) is not None:
                owner.stateful_metrics = {*owner.stateful_metrics, *shown}
        install([(bar, "a progress bar's update", _renaming)])

    return on_epoch_begin


def _renaming(update: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(update)
    def wrapped(current: Any, values: Any = None, *args: object, **kwargs: object) -> None:
        update(current, _renamed(values), *args, **kwargs)

    return wrapped


def _renamed(values: Any) -> Any:
    """Return the pairs of key and value that a progress bar shows."""
    short = 0
    renamed = []
    for key, value in values or ():
        name = _names.get(key, key)
        short += name not in (key, None)
        if key in _names and math.isnan(value):  # not known yet
            continue
        if name == key or (name is not None and short <= _MOST_SHORT):
            renamed.append((name, value))
    return renamed
