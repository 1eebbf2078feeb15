"""Showing that something is at work, in one line of stderr that is written over and over."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class Progress:
    """Shows a text with the seconds behind it; on what is no terminal it prints the text once.

    Args:
        text: What is at work.
        shown: Whether to show anything.
        file: Where to; by default stderr.
    """

    def __init__(self, text: str, *, shown: bool = True, file: Any = None) -> None:
        self._text = text
        self._shown = shown
        self._file = sys.stderr if file is None else file
        self._last = -1

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        if self._shown and self._last >= 0 and self._is_terminal():
            print(file=self._file, flush=True)

    def after(self, seconds: float) -> None:
        """Show that so many seconds have passed; nothing in the first one."""
        if not self._shown or int(seconds) <= max(self._last, 0):
            return
        is_first, self._last = self._last < 0, int(seconds)
        if self._is_terminal():
            print(f"\r{self._text}, {self._last} s ", end="", file=self._file, flush=True)
        elif is_first:
            print(f"{self._text} ...", file=self._file, flush=True)

    def _is_terminal(self) -> bool:
        return bool(getattr(self._file, "isatty", lambda: False)())
