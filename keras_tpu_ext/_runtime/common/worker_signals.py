"""What signals do in the processes that read batches for a training, which the whole group of processes gets.

They leave the first Ctrl-C to the training, and end on SIGTERM when they have finished their batch: without it no
step would begin, and so nothing would be saved.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from types import FrameType

# For how many seconds a worker may finish its batch, which the training may be waiting for, and how often it looks.
_WORKER_S, _LOOK_S = 5.0, 0.05


def heed_signals_in_worker() -> None:
    """Handle signals so in this process, which another one has started anew (`spawn`, `forkserver`).

    One that was forked has the handlers of the training.
    """
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        signal.signal(signal.SIGINT, note_in_worker)
        signal.signal(signal.SIGTERM, note_in_worker)


def note_in_worker(number: int, frame: FrameType | None) -> None:
    """Handle a signal in a process that was started or forked by the one that trains."""
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
            return "res" not in frame.f_locals  # the bytes of a task that has come
        frame = frame.f_back
    return False
