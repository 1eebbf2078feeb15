"""Open each strategy once per process, from any thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable

from keras_tpu_ext._runtime.common.values import OpenedStrategy

_Opener = Callable[..., OpenedStrategy]
_LOCK = threading.Lock()


def once_per_process(function: _Opener) -> _Opener:
    """Cache the results of `function`, and let one thread call it at a time: a TPU is initialised once."""
    cached = functools.cache(function)

    @functools.wraps(function)
    def locked(*arguments: Hashable) -> OpenedStrategy:
        with _LOCK:
            return cached(*arguments)

    locked.cache_clear = cached.cache_clear  # type: ignore[attr-defined]
    return locked
