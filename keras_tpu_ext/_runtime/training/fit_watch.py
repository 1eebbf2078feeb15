"""Watch a `fit` from its first line to its last, and let it call its callbacks through something that times them."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from keras_tpu_ext._runtime.common.patches import install
from keras_tpu_ext._runtime.common.types import Callback, Model
from keras_tpu_ext._runtime.compat import keras

FitWatch = Callable[[Model, list[Callback], float, contextlib.ExitStack], list[Any]]


class _Fit:
    """A call of `fit`."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.began = time.perf_counter()
        self.has_begun = False  # and what calls `fit` again is a callback
        self.at_end = contextlib.ExitStack()
        self.container: Any = None  # the `CallbackList` whose hooks it calls


_FIT: ContextVar[_Fit | None] = ContextVar("_FIT", default=None)
_WATCHES: list[FitWatch] = []


@contextlib.contextmanager
def running_fit(model: Model) -> Iterator[None]:
    """Return a context for a call of the `fit` of `model`; it may be entered again inside."""
    outer = _FIT.get()
    if outer is not None and outer.model is model and not outer.has_begun:
        yield
        return
    fit = _Fit(model)
    token = _FIT.set(fit)
    try:
        with fit.at_end:
            yield
    finally:
        _FIT.reset(token)


def watch_fits(watch: FitWatch) -> None:
    """From now on, call `watch` when the callbacks of a `fit` are about to be called for the first time.

    It gets the model, its callbacks, the `time.perf_counter` of the first line of `fit`, and a stack that is closed
    at its end, also after an error; it returns what Keras is to call in place of the callbacks.
    """
    if watch not in _WATCHES:
        _WATCHES.append(watch)
    begin = "keras.callbacks.CallbackList.on_train_begin"  # each time: somebody may have put the stock ones back
    install([(keras.Model, "keras.Model.fit", _fit), (keras.callbacks.CallbackList, begin, _on_train_begin)])


def finish_hooks() -> None:
    """Wait until hooks of the running `fit` have returned, which Keras on JAX calls in other threads.

    Raises the error of one that has failed. It needs a `watch_fits` before the `fit`.
    """
    fit = _FIT.get()
    for future in list(getattr(fit and fit.container, "_futures", ())):
        future.result()


def _fit(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def fit(self: Any, *args: Any, **kwargs: Any) -> object:
        with running_fit(self):
            return stock(self, *args, **kwargs)

    return fit


def _on_train_begin(stock: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(stock)
    def on_train_begin(self: Any, logs: Any = None) -> None:
        fit = _FIT.get()
        if fit is not None and fit.model is self.model and not fit.has_begun:
            fit.has_begun, fit.container = True, self
            before = self.callbacks
            for watch in _WATCHES:
                self.callbacks = watch(fit.model, list(self.callbacks), fit.began, fit.at_end)
            fit.at_end.callback(_put_back, self, before, self.callbacks, len(self.callbacks))
        stock(self, logs)

    return on_train_begin


def _put_back(container: Any, callbacks: list[Callback], called: list[Any], count: int) -> None:
    """Give a `CallbackList` its callbacks back, and those that it got during the `fit`."""
    if container.callbacks is called:
        callbacks += called[count:]
        container.callbacks = callbacks
