"""Keep blocks open when Keras clears its session inside them.

`keras.backend.clear_session()` drops the dtype policy and the distribution of Keras 3, and the graph in which
TensorFlow keeps the strategy; leaving a block of that strategy would then fail.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from keras_tpu_ext._runtime.common.patches import Patch, patched
from keras_tpu_ext._runtime.compat import keras

_STOCK: Callable[..., None] = keras.backend.clear_session
_IMPORTERS: dict[Any, None] = {}  # modules that have it, or what somebody has wrapped round it


class _Open(threading.local):
    """The blocks that this thread is in, innermost last."""

    def __init__(self) -> None:
        self.blocks: list[reopened_by_clear_session] = []


_OPEN = _Open()


class reopened_by_clear_session:  # noqa: N801, a context manager like those of contextlib
    """Enter a context, leave it before each `clear_session()` in the block, and enter it again afterwards."""

    def __init__(self, make_context: Callable[[], AbstractContextManager[object]]) -> None:
        self._make_context = make_context
        self._context: AbstractContextManager[object] = contextlib.nullcontext()
        self._patches = contextlib.ExitStack()

    def __enter__(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(patched(_patches()))
            self.enter()
            self._patches = stack.pop_all()
        _OPEN.blocks.append(self)

    def __exit__(self, *error: Any) -> None:
        _OPEN.blocks.remove(self)
        with self._patches:
            self._context.__exit__(*error)

    def enter(self) -> None:
        """Enter a new context."""
        self._context = self._make_context()
        self._context.__enter__()

    def leave(self) -> None:
        """Leave the context for now."""
        self._context.__exit__(None, None, None)


def _reopening(stock: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(stock)
    def clear_session(*args: object, **kwargs: object) -> None:
        blocks = list(_OPEN.blocks)
        for block in reversed(blocks):
            block.leave()
        try:
            stock(*args, **kwargs)
        finally:
            for block in blocks:
                block.enter()

    return clear_session


def _patches() -> list[Patch]:
    """Return the patches of the function in every module that has imported it."""
    found = [one for one in list(sys.modules.values()) if getattr(one, "__dict__", {}).get("clear_session") is _STOCK]
    _IMPORTERS.update(dict.fromkeys(found))
    return [(module, "keras.backend.clear_session", _reopening) for module in _IMPORTERS]
