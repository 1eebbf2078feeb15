"""What signals do in the processes that read batches for a training, which the whole group of processes gets.

They leave the first Ctrl-C to the training, and end on SIGTERM when they have finished their batch: without it no
step would begin, and so nothing would be saved.

Python runs a handler between two steps of its own. A signal that comes just before a worker waits in C, for the lock
of a queue, would be handled when that wait has ended, which may be never: so SIGTERM is sent again. And Python
forgets signals that come before a process is forked completely: so they are held back until then.
"""

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

# For how many seconds a worker may finish its batch, which the training may be waiting for, and how often it looks.
_WORKER_S, _LOOK_S = 5.0, 0.05
_HEEDED = (signal.SIGINT, signal.SIGTERM)
_blocks: list[None] = []  # one for each block in which processes that are forked may be workers
_forking = threading.local()  # `mask`: the signals that are held back anyway


@contextlib.contextmanager
def workers_heed_signals() -> Iterator[None]:
    """Within the block a process that is forked, with the handlers of this one, gets every signal."""
    if hasattr(os, "register_at_fork"):
        _register_at_fork()
    _blocks.append(None)
    try:
        yield
    finally:
        _blocks.pop()


def heed_signals_in_worker() -> None:
    """Handle signals so in this process, which another one has started anew (`spawn`, `forkserver`)."""
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        for number in _HEEDED:
            signal.signal(number, note_in_worker)
        _send_again()


@functools.cache
def _register_at_fork() -> None:
    os.register_at_fork(before=_hold_back, after_in_parent=_let_come, after_in_child=_begin_in_forked)


def _hold_back() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HEEDED) if _blocks else None


def _let_come() -> None:
    if _forking.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _begin_in_forked() -> None:
    if _forking.mask is not None:
        _send_again()
    _let_come()


def _send_again() -> None:
    """Send each SIGTERM again, a little later, to this thread, the main one, while its handler is that of now."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    main, handler = threading.get_ident(), signal.getsignal(signal.SIGTERM)

    def send() -> None:
        while True:
            if signal.SIGTERM in os.read(reading, 64):
                time.sleep(_LOOK_S)
                if signal.getsignal(signal.SIGTERM) == handler:
                    signal.pthread_kill(main, signal.SIGTERM)

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the thread is to get none
    threading.Thread(target=send, name="SIGTERM again", daemon=True).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


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
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)  # so that it gives back the lock of the queue, which the training needs
    if time.monotonic() >= latest:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda _, frame: _end_when_idle(number, frame, latest))
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)


def _waits_for_work(frame: FrameType | None) -> bool:
    """Return whether `multiprocessing` waits for the next task, in this frame or around it."""
    while frame is not None:
        if frame.f_code.co_name == "get" and frame.f_globals.get("__name__") == "multiprocessing.queues":
            return "res" not in frame.f_locals  # the bytes of a task that has come
        frame = frame.f_back
    return False
