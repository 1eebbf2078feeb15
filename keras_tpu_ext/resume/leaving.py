"""When `fit` has to stop early: before the session ends, and on request of the system or the user."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

# Longest duration of a session in seconds: with a TPU by Kaggle's documentation of notebooks, and by Colab's FAQ.
SESSIONS = {"kaggle": 9 * 3600.0, "colab": 12 * 3600.0}

_SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


_NOTES: list[Callable[..., Any]] = []  # the handlers of running `fit`s


def _begin_in_forked() -> None:
    """In a process that was forked in a `fit`, such as a worker, ignore Ctrl-C, and let SIGTERM end it."""
    for number, handler in ((signal.SIGINT, signal.SIG_IGN), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) in _NOTES:
            signal.signal(number, handler)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_forked)


class Interruption:
    """A signal that asks `fit` to stop; the second Ctrl-C raises `KeyboardInterrupt`.

    Processes that read batches leave Ctrl-C to this one, since a terminal sends it to all; SIGTERM ends them. After a
    SIGTERM that came too late for its `fit`, the next `fit` of the process stops.
    """

    _too_late = ""

    def __init__(self) -> None:
        self.reason = ""  # the signal that came, or an empty text
        self.is_heeded = False  # whether `fit` stops because of it

    @contextlib.contextmanager
    def heeding_signals(self) -> Iterator[None]:
        """Note SIGTERM and Ctrl-C inside the block. Only the main thread can do this."""
        self.reason, self.is_heeded = "", False
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.reason, Interruption._too_late = Interruption._too_late, ""
        before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        try:
            _NOTES.append(self._note)
            yield
        finally:
            _NOTES.pop()
            for number, handler in before.items():
                # None is a handler set in C, which Python cannot restore.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            if self.reason == _SIGNALS[signal.SIGTERM] and not self.is_heeded:
                Interruption._too_late = self.reason

    def _note(self, number: int, frame: FrameType | None) -> Any:
        if number == signal.SIGINT and self.reason == _SIGNALS[signal.SIGINT]:
            raise KeyboardInterrupt
        self.reason = _SIGNALS[signal.Signals(number)]
        say(f"{self.reason}: saving, then stopping.", begin="\n")


def say(text: str, begin: str = "") -> None:
    """Print a line; a closed output must not end the training."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # RuntimeError in the middle of another print
        print(f"{begin}AutoResume: {text}", flush=True)


def seconds_of_process() -> float:
    """Return the seconds since this process started; if the system does not say, since this module was imported."""
    return time.monotonic() - _begin_of_process()


@functools.cache
def _begin_of_process() -> float:
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return _IMPORTED
    return time.monotonic() - age


_IMPORTED = time.monotonic()
