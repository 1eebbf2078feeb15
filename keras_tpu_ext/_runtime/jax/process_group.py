"""Several processes that train together on JAX: what they tell each other, and the loss of one in words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import jax
import numpy as np
from jax._src import distributed

from keras_tpu_ext.errors import ClusterError

_LOST = re.compile(r"Gloo .*(failed|closed|reset)|Connection (reset|closed|refused)|heartbeat|coordination", re.I)


def all_gather_int(number: int) -> list[int]:
    """Return the numbers that all processes call this with, the same on each of them."""
    if num_workers() == 1:
        return [number]
    from jax.experimental import multihost_utils

    gathered = multihost_utils.process_allgather(np.int32(number))
    return [int(one) for one in np.asarray(gathered).ravel()]


@contextlib.contextmanager
def explain_peer_failure() -> Iterator[None]:
    """Within the block the end of another process is a `ClusterError`.

    Raises:
        ClusterError: If JAX fails because another process cannot be reached.
    """
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if num_workers() == 1 or not _LOST.search(str(error)):
            raise
        raise ClusterError(
            f"This process ({jax.process_index()} of {num_workers()}) can no longer reach another one, which has "
            "most likely ended: look for the first error in the output of the others. All of them have to be started "
            "again; with keras.callbacks.BackupAndRestore they go on where they were."
        ) from error


def num_workers() -> int:
    """Return how many processes train together: as many as `keras.distribution.initialize` has joined."""
    return 1 if distributed.global_state.client is None else jax.process_count()


def is_chief() -> bool:
    """Return whether this is the process that writes files and prints."""
    return num_workers() == 1 or jax.process_index() == 0
