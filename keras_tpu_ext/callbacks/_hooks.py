"""Callbacks whose hooks are timed, as one object that Keras calls in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
        before: What to call before all hooks of a name.
        after: What to call after them.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        buckets: Buckets,
        *,
        before: Mapping[str, Callable[[], None]],
        after: Mapping[str, Callable[[], None]],
    ) -> None:
        self.callbacks = list(callbacks)
        self.buckets = list(map(bucket_of, callbacks))
        self.of_batches = [0.0] * len(callbacks)  # seconds of each callback
        self._charged, self._thread = buckets, get_ident()
        self.find_doing()
        for name in _HOOKS:
            hook = self._timed_of_batches(name) if name in _OF_BATCHES else self._timed(name)
            if name in before:
                hook = _after(before[name], hook)
            if name in after:
                hook = _before(after[name], hook)
            setattr(self, name, hook)

    def set_params(self, params: Any) -> None:
        """Pass the parameters on."""
        for callback in self.callbacks:
            callback.set_params(params)

    def set_model(self, model: Model) -> None:
        """Pass the model on."""
        for callback in self.callbacks:
            callback.set_model(model)

    def _timed(self, name: str) -> Callable[..., None]:
        charged, callbacks = self._charged, self.callbacks

        def hook(*args: Any, **kwargs: Any) -> None:
            charged.open(charged.bucket)
            began = charged.clock()
            for i, one in enumerate(callbacks):
                getattr(one, name)(*args, **kwargs)  # which a callback may have set just now
                now = charged.clock()
                charged.charge(self.buckets[i], now - began)
                began = now

        return hook

    def _timed_of_batches(self, name: str) -> Callable[..., None]:
        clock, seconds, thread = self._charged.clock, self.of_batches, self._thread

        def hook(*args: Any, **kwargs: Any) -> None:
            doing = self._doing[name]
            if not doing or get_ident() != thread:  # Keras on JAX may call it beside the next step
                for _, one in doing:
                    getattr(one, name)(*args, **kwargs)
                return
            began = clock()
            for i, one in doing:
                getattr(one, name)(*args, **kwargs)
                now = clock()
                seconds[i] += now - began
                began = now

        return hook

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


def _after(before: Callable[[], None], hook: Callable[..., None]) -> Callable[..., None]:
    def called(*args: Any, **kwargs: Any) -> None:
        before()
        hook(*args, **kwargs)

    return called


def _before(after: Callable[[], None], hook: Callable[..., None]) -> Callable[..., None]:
    def called(*args: Any, **kwargs: Any) -> None:
        hook(*args, **kwargs)
        after()

    return called
