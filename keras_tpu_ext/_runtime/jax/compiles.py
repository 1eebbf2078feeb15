"""The time that JAX has spent on compiling."""

from __future__ import annotations

import functools
import threading
import time
import weakref

import jax

from keras_tpu_ext._runtime.common.compiles import CompileWatch

# Tracing to a jaxpr, lowering to StableHLO, and the compiler or, instead, reading its result from the cache.
_EVENTS = "/jax/core/compile/"
_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_open: weakref.WeakSet[CompileWatch] = weakref.WeakSet()
_lock = threading.Lock()


def watch_compiles() -> CompileWatch:
    """Return a `CompileWatch` that begins now and ends when nobody holds it."""
    _listen()
    watch = CompileWatch()
    with _lock:
        _open.add(watch)
    return watch


@functools.cache
def _listen() -> None:
    # Once for the process: in older versions of JAX only a private name takes a listener back.
    jax.monitoring.register_event_duration_secs_listener(_note)


def _note(event: str, seconds: float, **_: str | int) -> None:
    if event.startswith(_EVENTS):
        ended = time.perf_counter()
        with _lock:
            watches = list(_open)
        for watch in watches:
            watch.add(ended - seconds, ended, programs=event == _LOWERED)
