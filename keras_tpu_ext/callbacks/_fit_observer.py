"""Callbacks that are told of a whole `fit`: of its other callbacks, and of its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.types import Callback, Model
from keras_tpu_ext.callbacks._hooks import all_of


class FitObserver:
    """A mixin for callbacks that are told when a `fit` begins and ends."""

    def __init__(self) -> None:
        super().__init__()
        _runtime.progress.watch_fits(_observe)

    def begin_fit(self, callbacks: list[Any], began: float) -> None:
        """Note all callbacks of a `fit`, before any is called, and the `time.perf_counter` of its first line."""
        raise NotImplementedError

    def end_fit(self) -> None:
        """Note that `fit` has ended, also by an error; not called for a model that is in no `strategy_scope()`."""
        raise NotImplementedError


class _Observation:
    def __init__(self, callbacks: Sequence[Callback], observers: Sequence[FitObserver]) -> None:
        self.callbacks, self._observers = list(callbacks), observers

    def end(self) -> None:
        for observer in self._observers:
            observer.end_fit()


def _observe(model: Model, callbacks: list[Callback], began: float) -> _Observation | None:
    found = all_of(callbacks)
    observers = [one for one in found if isinstance(one, FitObserver)]
    for one in observers:
        one.begin_fit(found, began)
    return _Observation(callbacks, observers) if observers else None
