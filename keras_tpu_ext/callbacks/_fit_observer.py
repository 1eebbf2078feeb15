"""Callbacks that are told of a whole `fit`: of its other callbacks, and of its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common import user_frame
from keras_tpu_ext._runtime.common.types import Callback, Model
from keras_tpu_ext.callbacks._hooks import all_of
from keras_tpu_ext.callbacks._ledger import FitLedger
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import NothingMeasuredError


def say(callback: Callback, text: str) -> None:
    """Print a text of a callback, below the progress bar where there is one."""
    has_bar = (callback.params or {}).get("verbose") in (1, "auto")
    print(f"\n{text}" if has_bar else text)


def warn(text: str) -> None:
    """Warn at the user's line, in one process of several."""
    if _runtime.devices.is_chief():
        user_frame.warn(text)


def nothing_yet(call: str, *, needs: str = "") -> NothingMeasuredError:
    """Return the error of a call such as `"goodput.report()"` that came too early, and what it needs, if more."""
    name = call.partition(".")[0]
    more = f": it takes {needs}" if needs else ""
    return NothingMeasuredError(
        f"There is nothing measured yet{more}. Write: model.fit(..., callbacks=[{name}]), then {call}"
    )


class FitObserver(_runtime.keras.callbacks.Callback):
    """The base of callbacks that are told when a `fit` begins and ends, and whose hooks of batches only look.

    Keras on JAX goes on dispatching beside them, and calls the hook after a batch in another thread. There they must
    not touch the model, whose arrays the next execution consumes; anywhere, `self.model` copies the state back. They
    do not mind executions of several batches.
    """

    async_safe = True
    wants_every_batch = False

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.clock = check.function(type(self).__name__, "clock", clock, what="seconds", example="time.perf_counter")
        _runtime.progress.watch_fits(_observe)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _runtime.progress.watch_fits(_observe)  # a copy may be in another process

    def get_state(self) -> dict[str, Any]:
        """Return what `AutoResume` saves, which is nothing: what was measured is of one process."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what `get_state` returned."""

    def begin_fit(self, callbacks: list[Any], began: float) -> None:
        """Note all callbacks of a `fit`, before any is called, and when it came to its first line, by `clock`."""

    def end_fit(self) -> None:
        """Note that `fit` has ended, also by an error."""

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """End also where this is a loop of the user's own."""
        self.end_fit()


class LedgerUser(FitObserver):
    """The base of callbacks that share one ledger of each `fit`."""

    window = 20
    wants_probes = False
    _ledger: FitLedger | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_ledger": None}  # a copy has measured nothing, and nobody can copy a running fit


def _observe(model: Model, callbacks: list[Callback], began: float, at_end: contextlib.ExitStack) -> list[Any]:
    """Tell the observers of a `fit`, and time the hooks if there is a ledger."""
    found = all_of(callbacks)
    observers = [one for one in found if isinstance(one, FitObserver)]
    users = [one for one in observers if isinstance(one, LedgerUser)]
    if users:
        ledger = FitLedger(
            model,
            found,
            _by_clock(began, users[0].clock),
            clock=users[0].clock,
            window=max(user.window for user in users),
            probes=any(user.wants_probes for user in users),
        )
        at_end.callback(ledger.end)
        for user in users:
            user._ledger = ledger
    for one in observers:
        one.begin_fit(found, _by_clock(began, one.clock))
        at_end.callback(one.end_fit)
    return [ledger] if users else callbacks


def _by_clock(began: float, clock: Callable[[], float]) -> float:
    """Return what a clock showed at a time of `time.perf_counter`."""
    return clock() - (time.perf_counter() - began)
