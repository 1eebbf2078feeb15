"""The time that is spent on compiling."""

from __future__ import annotations

import threading
from typing import NamedTuple


class CacheUse(NamedTuple):
    """What came from a cache of compiled programs."""

    hits: int = 0  # programs that were read
    misses: int = 0  # programs that were compiled
    seconds_saved: float = 0.0  # of compiling, as it once took, without reading

    def __str__(self) -> str:
        return f"hits: {self.hits}, misses: {self.misses}, {self.seconds_saved:.3g} s of compiling saved"


class CompileWatch:
    """Counts the wall seconds that the thread which opened it spends on tracing, lowering and compiling."""

    # Whether `seconds` has all of it. On TensorFlow it has only tracing: what Grappler and XLA then do is in the
    # first execution of a graph, and TensorFlow tells it nowhere.
    sees_compiler = True

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._spans: list[tuple[float, float]] = []
        self._seconds = 0.0
        self.programs = 0  # number of programs that were lowered; counted on JAX only
        self.cache = CacheUse()  # counted on JAX only
        self.is_paused = False  # whether nothing is counted that is compiled now, but for `cache`

    def seconds(self) -> float:
        """Return the seconds since the watch was opened."""
        return self._seconds

    def count_cache(self, hits: int, misses: int, saved: float) -> None:
        """Add to what this thread has asked a cache of programs for."""
        if threading.get_ident() == self._thread:
            so_far = self.cache
            self.cache = CacheUse(so_far.hits + hits, so_far.misses + misses, so_far.seconds_saved + saved)

    def add(self, began: float, ended: float, programs: int = 0) -> None:
        """Add the time of an event that has just ended; events nest, and no second counts twice."""
        if self.is_paused or threading.get_ident() != self._thread:
            return
        self.programs += programs
        while self._spans and self._spans[-1][1] > began:
            inner = self._spans.pop()
            self._seconds -= inner[1] - inner[0]
            began = min(began, inner[0])
        self._spans.append((began, ended))
        self._seconds += ended - began
