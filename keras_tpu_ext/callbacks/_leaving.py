"""When a training has to leave: before the session ends, and when the system or the user asks it to."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

# Seconds that a session may last at most: with a TPU by Kaggle's documentation of notebooks, and by Colab's FAQ.
SESSIONS = {"kaggle": 9 * 3600.0, "colab": 12 * 3600.0}

_SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


# For how many seconds a worker may finish its batch, which the training may be waiting for, and how often it looks.
_WORKER_S, _LOOK_S = 5.0, 0.05


class Interruption:
    """A signal that asks to leave; the second Ctrl-C raises `KeyboardInterrupt`.

    A terminal sends Ctrl-C to processes that were forked, too, and a service manager SIGTERM. They leave the first
    Ctrl-C to the training. Workers end on SIGTERM when they have finished their batch: without it no step would
    begin, and so nothing would be saved.

    Attributes:
        reason: The signal that came, or an empty text.
    """

    def __init__(self) -> None:
        self.reason = ""
        self._process = os.getpid()

    @contextlib.contextmanager
    def heeding_signals(self) -> Iterator[None]:
        """Within the block, note SIGTERM and Ctrl-C. Only the main thread can."""
        self.reason = ""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                # None is a handler of C, which Python cannot put back.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: FrameType | None) -> Any:
        if os.getpid() != self._process:
            _note_in_forked(number, frame)
            return
        if number == signal.SIGINT and self.reason == _SIGNALS[signal.SIGINT]:
            raise KeyboardInterrupt
        self.reason = _SIGNALS[signal.Signals(number)]
        say(f"{self.reason}: saves, then leaves.", begin="\n")


def say(text: str, begin: str = "") -> None:
    """Print a line; where nobody reads it any more, that is no reason to lose a training."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # RuntimeError in the middle of another print
        print(f"{begin}AutoResume: {text}", flush=True)


def _note_in_forked(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGINT:
        signal.signal(number, signal.default_int_handler)
        return
    is_worker = multiprocessing.current_process().daemon
    _end_when_idle(number, frame, time.monotonic() + (_WORKER_S if is_worker else 0.0))


def _end_when_idle(number: int, frame: FrameType | None, latest: float) -> None:
    """End this process if it waits for work, or it is too late; look again soon if not."""
    if _waits_for_work(frame):
        raise SystemExit(128 + number)  # so that it gives back the lock of the queue, which the training needs
    if time.monotonic() >= latest:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda _, frame: _end_when_idle(number, frame, latest))
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S)


def _waits_for_work(frame: FrameType | None) -> bool:
    """Return whether `multiprocessing` waits for the next task, in this frame or around it."""
    while frame is not None:
        if frame.f_code.co_name == "get" and frame.f_globals.get("__name__") == "multiprocessing.queues":
            return True
        frame = frame.f_back
    return False


def seconds_of_process() -> float:
    """Return for how many seconds this process has run; where the system does not say, since this was imported."""
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
