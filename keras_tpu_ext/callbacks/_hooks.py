"""Callbacks whose hooks are timed, as one object that Keras calls in their place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.types import Callback, Model
from keras_tpu_ext.callbacks._buckets import CHECKPOINT, OF_CALLBACKS, Buckets

_HOOKS = tuple(name for name in dir(_runtime.keras.callbacks.Callback) if name.startswith("on_"))
_SAVING = (_runtime.keras.callbacks.BackupAndRestore, _runtime.keras.callbacks.ModelCheckpoint)
_OF_BATCHES = ("on_train_batch_begin", "on_train_batch_end")


def bucket_of(callback: Callback) -> str:
    """Return the bucket of a callback's hooks."""
    saves = isinstance(callback, _SAVING) or type(callback).__name__ in ("AutoResume", "OrbaxCheckpoint")
    return CHECKPOINT if saves else f"{OF_CALLBACKS}{type(callback).__name__}"


class Hooks:
    """Calls the hooks of all callbacks, in their order, and charges what each takes in the thread of `fit`.

    The hooks before and after train batches only add to `of_batches`, since they run most often.

    Args:
        callbacks: The callbacks.
        buckets: What is charged.
    """

    def __init__(self, callbacks: Sequence[Callback], buckets: Buckets) -> None:
        self.callbacks = list(callbacks)
        self.names = list(map(bucket_of, callbacks))  # of the bucket of each
        self.of_batches = [0.0] * len(callbacks)  # seconds of each callback
        self._buckets, self._clock, self._thread = buckets, buckets.clock, get_ident()
        self.find_doing()

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in _HOOKS:
            raise AttributeError(name)
        return functools.partial(self._call_of_batch if name in _OF_BATCHES else self._call, name)

    def set_params(self, params: Any) -> None:
        """Pass the parameters on."""
        for callback in self.callbacks:
            callback.set_params(params)

    def set_model(self, model: Model) -> None:
        """Pass the model on."""
        for callback in self.callbacks:
            callback.set_model(model)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> None:
        buckets = self._buckets
        buckets.open(buckets.bucket)
        began = self._clock()
        for bucket, one in zip(self.names, self.callbacks, strict=True):
            getattr(one, name)(*args, **kwargs)  # which a callback may have set just now
            now = self._clock()
            buckets.charge(bucket, now - began)
            began = now

    def _call_of_batch(self, name: str, *args: Any, **kwargs: Any) -> None:
        doing, clock, seconds = self._doing[name], self._clock, self.of_batches
        if not doing or get_ident() != self._thread:  # Keras on JAX may call it beside the next step
            for _, one in doing:
                getattr(one, name)(*args, **kwargs)
            return
        began = clock()
        for i, one in doing:
            getattr(one, name)(*args, **kwargs)
            now = clock()
            seconds[i] += now - began
            began = now

    def find_doing(self) -> None:
        """Find the callbacks whose hooks of batches do something, to call only these in the next epoch."""
        numbered = list(enumerate(self.callbacks))
        self._doing = {name: [(i, one) for i, one in numbered if _does(one, name)] for name in _OF_BATCHES}


def _does(callback: Callback, name: str) -> bool:
    """Return whether the hook, or the one that Keras's calls in it, is not that of Keras's base class."""
    names = name, name.replace("_train", "")
    base = _runtime.keras.callbacks.Callback
    return any(getattr(getattr(callback, one, None), "__func__", None) is not getattr(base, one) for one in names)


def all_of(callbacks: Sequence[Any]) -> list[Any]:
    """Return the callbacks of a `fit`, also those that `Hooks` stand for."""
    return [one for given in callbacks for one in (given.callbacks if isinstance(given, Hooks) else [given])]
