"""Opening a strategy once per process, whichever thread asks."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from keras_tpu_ext._runtime.common.protocols import OpenedStrategy

_Opener = Callable[..., OpenedStrategy]
_OPENING = threading.Lock()


def once_per_process(function: _Opener) -> _Opener:
    """Cache what `function` returns; two threads at once get one TPU initialisation and not two."""
    cached = functools.cache(function)

    @functools.wraps(function)
    def locked(*arguments: Any) -> OpenedStrategy:
        with _OPENING:
            return cached(*arguments)

    locked.cache_clear = cached.cache_clear  # type: ignore[attr-defined]
    return locked
