"""The processes that train a model on JAX."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np

from keras_tpu_ext._runtime.common.missing_names import private
from keras_tpu_ext._runtime.common.patches import patched
from keras_tpu_ext._runtime.jax.peer_failure import end_with_peers
from keras_tpu_ext._runtime.training.process_group import ProcessGroup
from keras_tpu_ext.errors import ClusterError

_global_state: Any = private("jax._src.distributed:global_state")

_Read = Callable[..., np.ndarray]

_LOST = re.compile(r"Gloo .*(failed|closed|reset)|Connection (reset|closed|refused)|heartbeat|coordination", re.I)


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
