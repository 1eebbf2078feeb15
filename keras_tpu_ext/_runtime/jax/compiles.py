"""The time that JAX has spent on compiling, and its cache of compiled programs."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from keras_tpu_ext._runtime.common.compiles import CompileWatch
from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.patches import install

# Tracing to a jaxpr, lowering to StableHLO, and the compiler or, instead, reading its result from the cache.
_EVENTS = "/jax/core/compile/"
_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
# What an event says of the cache: hits and misses. Each program asks first, and a hit takes the miss back.
_CACHE = {
    "/jax/compilation_cache/compile_requests_use_cache": (0, 1),
    "/jax/compilation_cache/cache_hits": (1, -1),
    "/jax/compilation_cache/compile_time_saved_sec": (0, 0),
}
# JAX's defaults, and what pays: small programs, of which there are many; and no path of XLA's own cache in the keys.
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "jax_persistent_cache_min_compile_time_secs": (1.0, 0.0),
    "jax_persistent_cache_enable_xla_caches": ("xla_gpu_per_fusion_autotune_cache_dir", "none"),
}
_compilation_cache: Any = private("jax._src.compilation_cache")
_caches: dict[str, Any] = {}
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
    jax.monitoring.register_event_listener(_note)


def _note(event: str, seconds: float = 0.0, **_: str | int) -> None:
    ended = time.perf_counter()
    with _lock:
        watches = list(_open)
    for watch in watches:
        if event.startswith(_EVENTS):
            watch.add(ended - seconds, ended, programs=event == _LOWERED)
        elif event in _CACHE:
            watch.count_cache(*_CACHE[event], saved=max(seconds, 0.0))


def compile_cache_dir() -> str | None:
    """Return the folder of JAX's compilation cache, if it has one."""
    path: str | None = jax.config.jax_compilation_cache_dir
    return path


def use_compile_cache(path: str, cache: Any) -> None:
    """Let JAX ask `cache` for programs, which it knows by `path`; see `training/protocols.py`."""
    _caches[path] = cache
    install([(_compilation_cache, "jax._src.compilation_cache.get_file_cache", _with_ours)])
    for name, (default, ours) in _OPTIONS.items():
        if getattr(jax.config, name) == default:  # else the user has set it
            jax.config.update(name, ours)
    if compile_cache_dir() != path:
        jax.config.update("jax_compilation_cache_dir", path)
        reset_cache()  # it may have another one open


def _with_ours(stock: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda path: (_caches[path], path) if path in _caches else stock(path)
