"""The processes that train a model on JAX: when an error ends one, the others end too and say which one it was.

They wait for it in a collective, which JAX can cancel on GPUs only. So a process that fails leaves its error in the
key-value store of JAX's coordination service, and the others look there while they train.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.training.process_group import ProcessGroup
from keras_tpu_ext.errors import ClusterError

_global_state: Any = private("jax._src.distributed:global_state")

_Read = Callable[..., np.ndarray]

_LOST = re.compile(r"Gloo .*(failed|closed|reset)|Connection (reset|closed|refused)|heartbeat|coordination", re.I)

_FAILED = "keras_tpu_ext/failed/"
_POLL_S = 1.0
_GRACE_S = 3.0  # for an error of this process's own: often all of them have the same one
_LEAVE_S = 5.0  # for the process that has failed to close its connections, by which a collective on a CPU fails


class _Loops:
    """The loops over batches of this process, nested ones not counted: all processes run the same ones."""

    begun = 0  # how many have begun
    error = ""  # the error that ended the last one, or an empty text
    watch: _PeerWatch | None = None  # the thread that looks for failures of other processes, while a loop runs


@contextlib.contextmanager
def end_with_peers() -> Iterator[None]:
    """Within the block, an error that ends another process, unless that is through the block, ends this one too."""
    if _global_state.client is None or _Loops.watch is not None:
        yield
        return
    _Loops.begun += 1
    watch = _Loops.watch = _PeerWatch(_global_state.client, _Loops.begun)
    watch.start()
    try:
        yield
        _Loops.error = ""
    except BaseException as error:
        _Loops.error = _first_line(error)  # not the error, whose traceback would keep arrays in memory
        if watch.reason and isinstance(error, Exception):
            raise ClusterError(watch.reason) from error
        raise
    finally:
        watch.has_left.set()
        _Loops.watch = None


class _PeerWatch(threading.Thread):
    """Looks for failures of other processes, until this one leaves its loop."""

    def __init__(self, client: Any, loop: int) -> None:
        super().__init__(name="keras_tpu_ext: failures of other processes", daemon=True)
        self._client = client
        self._loop = loop
        self.reason = ""  # what has happened, once this process has been given the time to fail by itself
        self.has_left = threading.Event()  # set when the loop has ended

    def run(self) -> None:
        """Look for a failure once a second; if there is one, end the loop or the process."""
        reason = ""
        while not reason:
            if self.has_left.wait(_POLL_S):
                return
            reason = self._find_failure()
        if self.has_left.wait(_GRACE_S):
            return
        self.reason = reason
        # JAX holds the process that has failed until all have called `shutdown`.
        threading.Thread(target=_shut_down, daemon=True).start()
        if not self.has_left.wait(_LEAVE_S):
            with contextlib.suppress(OSError, ValueError):  # a closed output
                sys.stdout.flush()
                print(f"keras_tpu_ext.errors.ClusterError: {reason}", file=sys.stderr, flush=True)
            os._exit(1)

    def _find_failure(self) -> str:
        """Return what is to be said of a process that failed before it got through this loop."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            for key, value in self._client.key_value_dir_get(_FAILED):
                loops, _, error = value.partition(" ")
                if int(loops) < self._loop:
                    return _reason(key.removeprefix(_FAILED), error)
        return ""


def _reason(process: str, error: str) -> str:
    return (
        f"Process {process} of {jax.process_count()} has failed ({error}), so this one, process "
        f"{jax.process_index()}, cannot go on. What to do: look for the cause in the output of process {process}, "
        "then start all of them again; with keras_tpu_ext.callbacks.AutoResume they go on where they were."
    )


def _shut_down() -> None:
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.distributed.shutdown()


@atexit.register  # runs before JAX's own, which waits for the other processes
def _publish_failure() -> None:
    """Tell the other processes of the error that ends this one, and how many loops it has got through."""
    uncaught = getattr(sys, "last_value", None)
    error = _Loops.error if uncaught is None else _first_line(uncaught)
    if error and _global_state.client is not None:
        loops = _Loops.begun - bool(_Loops.error)
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            _global_state.client.key_value_set(f"{_FAILED}{_global_state.process_id}", f"{loops} {error}")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def num_workers() -> int:
    """Return the number of processes that `keras.distribution.initialize` has joined."""
    return 1 if _global_state.client is None else jax.process_count()


def is_chief() -> bool:
    """Return whether this is the process that writes files and prints."""
    return num_workers() == 1 or jax.process_index() == 0


def has_shards_elsewhere(variable: keras.Variable) -> bool:
    """Return whether other processes have shards of a variable that this one lacks."""
    value = variable.value
    return isinstance(value, jax.Array) and not (value.is_fully_addressable or value.is_fully_replicated)


def _gathering(original: _Read) -> _Read:
    @functools.wraps(original)
    def read(variable: keras.Variable, dtype: str | None = None) -> np.ndarray:
        if not has_shards_elsewhere(variable):
            return original(variable, dtype)
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(variable.value, tiled=True), dtype)

    return read


class JaxProcessGroup(ProcessGroup):
    """The processes that `keras.distribution.initialize` or `jax.distributed` has joined."""

    size = staticmethod(num_workers)
    is_chief = staticmethod(is_chief)
    end_with_peers = staticmethod(end_with_peers)

    def all_gather_int(self, number: int) -> list[int]:
        """Return the numbers that all processes pass to this call, in the same order on each."""
        if num_workers() == 1:
            return [number]
        from jax.experimental import multihost_utils

        gathered = multihost_utils.process_allgather(np.int32(number))
        return [int(one) for one in np.asarray(gathered).ravel()]

    def reading_shards(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for reading variables with shards on other processes; all processes must read them."""
        return patched([(keras.Variable, "keras.Variable.__array__", _gathering)] if num_workers() > 1 else [])

    @contextlib.contextmanager
    def explain_peer_failure(self) -> Iterator[None]:
        """Turn JAX's errors about an unreachable process into a `ClusterError`."""
        try:
            yield
        except (ValueError, RuntimeError) as error:
            if num_workers() == 1 or isinstance(error, ClusterError) or not _LOST.search(str(error)):
                raise
            raise ClusterError(
                f"This process ({jax.process_index()} of {num_workers()}) can no longer reach another one, which has "
                "most likely ended: look for the first error in the output of the others. All of them have to be "
                "started again; with keras_tpu_ext.callbacks.AutoResume they go on where they were."
            ) from error
