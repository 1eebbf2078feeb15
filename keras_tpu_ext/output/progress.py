"""A progress line on stderr, and processes that are waited for with one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
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
        if self._shown and self._last >= 0 and self._file.isatty():
            print(file=self._file, flush=True)

    def update(self, seconds: float) -> None:
        """Show the elapsed seconds, from the first one on."""
        if not self._shown or int(seconds) <= max(self._last, 0):
            return
        is_first, self._last = self._last < 0, int(seconds)
        if self._file.isatty():
            print(f"\r{self._text}, {self._last} s ", end="", file=self._file, flush=True)
        elif is_first:
            print(f"{self._text} ...", file=self._file, flush=True)


def run_process(
    command: list[str],
    environment: dict[str, str],
    printed: Path,
    *,
    timeout_s: float,
    progress: Callable[[float], None],
) -> int:
    """Run a program and return its exit status; it is ended if this raises, also on `KeyboardInterrupt`.

    What it prints goes to a file: a pipe fills up, and stays open as long as any process holds it.
    """
    start = time.monotonic()
    with printed.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)
        try:
            while process.poll() is None:
                seconds = time.monotonic() - start
                if seconds > timeout_s:
                    raise subprocess.TimeoutExpired(command, timeout_s)
                progress(seconds)
                time.sleep(_POLL_SECONDS)
            return process.returncode
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def last_lines(printed: Path, count: int) -> str:
    """Return the last lines that a process printed, below a heading; empty if there are none."""
    lines = [line for line in printed.read_text(errors="replace").splitlines() if line.strip()][-count:]
    return "\n".join(["\nThe last lines that it printed:", *(f"  {line}" for line in lines)]) if lines else ""
