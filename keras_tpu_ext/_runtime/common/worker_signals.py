"""Signals in the worker processes that read batches for a training run; the whole process group receives them.

Workers leave the first Ctrl-C to the training process, and continue after a SIGTERM that it receives too: without
their batches no step would begin, and so nothing would be saved. After a SIGTERM for them alone, as a terminated pool
sends it, they end when they wait for work, so that they release the queue's lock, and after some seconds in any case.

Python runs a handler between two of its own instructions, which may never happen in a process that waits in C: so a
thread takes care of SIGTERM. And Python forgets signals that arrive before a process is completely forked: so they
are blocked until then.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

# Seconds: how long a worker may finish its batch, and find out whether the training has received SIGTERM too; how
# often it looks; and how long it waits for its own end.
_WORKER_S, _LOOK_S, _END_S = 5.0, 0.05, 0.5
_HEEDED = (signal.SIGINT, signal.SIGTERM)
# The handlers of the blocks in which forked processes may be workers.
_handlers: list[Callable[[int, FrameType | None], Any]] = []
_heard_by_started: list[Any] = []  # the same count as `_heard`, for spawned workers, if there are any
_forking = threading.local()  # `mask`: the signals that are blocked anyway
# In a worker: whether it may end when it waits for work, and whether it must in any case.
_worker = types.SimpleNamespace(may_end=False, must_end=False)
# By the function that receives a task, the variable that it has as soon as part of the task has arrived.
_HAS_COME = {"_recv": "chunk", "_recv_bytes": "buf", "recv_bytes": "buf"}


@contextlib.contextmanager
def workers_heed_signals(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Within the block, a forked process handles, as a worker, those signals that `handler` handles here."""
    if hasattr(os, "register_at_fork"):
        _register_at_fork()
    _handlers.append(handler)
    try:
        yield
    finally:
        _handlers.pop()


def tell_workers() -> None:
    """Tell the workers that the training process has received SIGTERM, and stops by itself."""
    _heard()[0] = (_heard()[0] + 1) % 256
    for count in _heard_by_started:
        count.value += 1


def shared_with_worker() -> Any:
    """Return what a worker started by `spawn` or `forkserver` needs; `None` if none is being started now."""
    if multiprocessing.context.get_spawning_popen() is None:
        return None
    if not _heard_by_started:
        _heard_by_started.append(multiprocessing.RawValue(ctypes.c_ubyte))
    return _heard_by_started[0]


def heed_signals_in_worker(shared: Any) -> None:
    """Handle signals as a worker in this process, which another one has started by `spawn` or `forkserver`."""
    if threading.current_thread() is threading.main_thread() and hasattr(os, "register_at_fork"):
        _register_at_fork()
        _heed(_HEEDED, shared)


@functools.cache
def _heard() -> mmap.mmap:
    """Return how many SIGTERMs the training has received, modulo 256: a byte in memory shared with forked workers."""
    return mmap.mmap(-1, 1)


@functools.cache
def _register_at_fork() -> None:
    _heard()
    os.register_at_fork(before=_hold_back, after_in_parent=_let_come, after_in_child=_begin_in_forked)


def _hold_back() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HEEDED) if _handlers else None


def _let_come() -> None:
    if _forking.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _begin_in_forked() -> None:
    if _forking.mask is not None:
        _heed([number for number in _HEEDED if signal.getsignal(number) in _handlers])
    _let_come()


def _heed(numbers: Sequence[signal.Signals], shared: Any = None) -> None:
    _handlers.append(_note)  # a process that a worker forks is a worker, too
    for number in numbers:
        signal.signal(number, _note)
    if signal.SIGTERM in numbers:
        try:
            _watch((lambda: _heard()[0]) if shared is None else (lambda: shared.value))
        except (OSError, RuntimeError):  # there is no file descriptor left, or no thread
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _note(number: int, frame: FrameType | None) -> None:
    """Handle a signal in a worker; for SIGTERM, the thread of `_watch` decides what to do."""
    if number == signal.SIGINT:
        signal.signal(number, signal.default_int_handler)
    elif _worker.may_end and _waits_for_work(frame):
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)
    elif _worker.must_end:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    else:
        _worker.may_end = False  # it was given a task just now


def _watch(heard: Callable[[], int]) -> None:
    """Take care of SIGTERM in a thread, for this, the main thread; `heard()` counts those that the training got."""
    main, seen = threading.get_ident(), heard()
    _worker.may_end = _worker.must_end = False
    reading, writing = os.pipe()

    def look() -> None:
        nonlocal seen
        while True:
            while signal.SIGTERM not in os.read(reading, 64):
                pass
            latest = time.monotonic() + _WORKER_S
            while True:
                time.sleep(_LOOK_S)
                if seen != heard() or signal.getsignal(signal.SIGTERM) not in (_note, signal.SIG_IGN):
                    break
                _worker.must_end = time.monotonic() >= latest
                # A process that is no daemon is no pool's but, say, an executor's, which breaks if a process ends.
                is_of_pool = multiprocessing.current_process().daemon
                if _worker.must_end or (is_of_pool and _waits_for_work(sys._current_frames().get(main))):
                    _worker.may_end = True
                    signal.pthread_kill(main, signal.SIGTERM)
                if _worker.must_end:
                    time.sleep(_END_S)
                    os.kill(os.getpid(), signal.SIGKILL)  # it is waiting in C
            seen = heard()

    os.set_blocking(writing, False)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the thread must get none
    try:
        threading.Thread(target=look, name="SIGTERM", daemon=True).start()
    except RuntimeError:
        os.close(reading)
        os.close(writing)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)


def _waits_for_work(frame: FrameType | None) -> bool:
    """Return whether `multiprocessing` waits in this frame, or around it, for a task of which nothing has arrived."""
    while frame is not None:
        name, module = frame.f_code.co_name, frame.f_globals.get("__name__")
        if module == "multiprocessing.queues" and name == "get":
            return "res" not in frame.f_locals
        if module == "multiprocessing.connection" and _HAS_COME.get(name, "") in frame.f_locals:
            return False
        frame = frame.f_back
    return False
