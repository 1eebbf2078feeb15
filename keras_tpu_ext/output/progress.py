"""A progress line on stderr, and waiting for a process with one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import TextIO

_POLL_SECONDS = 0.05


class Progress:
    """Shows a text with the elapsed seconds; prints the text once if the file is not a terminal."""

    def __init__(self, text: str, *, shown: bool = True, file: TextIO | None = None) -> None:
        self._text = text
        self._shown = shown
        self._file = sys.stderr if file is None else file
        self._last = -1

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown and self._last >= 0 and self._is_terminal():
            print(file=self._file, flush=True)

    def update(self, seconds: float) -> None:
        """Show the elapsed seconds, from the first one on."""
        if not self._shown or int(seconds) <= max(self._last, 0):
            return
        is_first, self._last = self._last < 0, int(seconds)
        if self._is_terminal():
            print(f"\r{self._text}, {self._last} s ", end="", file=self._file, flush=True)
        elif is_first:
            print(f"{self._text} ...", file=self._file, flush=True)

    def _is_terminal(self) -> bool:
        return self._file.isatty()


def wait_for(process: subprocess.Popen[bytes], timeout_s: float, progress: Callable[[float], None]) -> int:
    """Wait for a process and return its exit status; it is ended if this raises, also on `KeyboardInterrupt`."""
    start = time.monotonic()
    try:
        while process.poll() is None:
            seconds = time.monotonic() - start
            if seconds > timeout_s:
                raise subprocess.TimeoutExpired(process.args, timeout_s)
            progress(seconds)
            time.sleep(_POLL_SECONDS)
        return int(process.returncode)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
