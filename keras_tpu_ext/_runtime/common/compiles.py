"""The time that is spent on compiling."""

from __future__ import annotations

import threading


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

    def seconds(self) -> float:
        """Return the seconds since the watch was opened."""
        return self._seconds

    def add(self, began: float, ended: float, programs: int = 0) -> None:
        """Add the time of an event that has just ended; events nest, and no second counts twice."""
        if threading.get_ident() != self._thread:
            return
        self.programs += programs
        while self._spans and self._spans[-1][1] > began:
            inner = self._spans.pop()
            self._seconds -= inner[1] - inner[0]
            began = min(began, inner[0])
        self._spans.append((began, ended))
        self._seconds += ended - began
