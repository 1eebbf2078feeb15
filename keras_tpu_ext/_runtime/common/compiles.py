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
        self.is_paused = False  # whether nothing counts for now, such as what a data pipeline compiles

    def seconds(self) -> float:
        """Return the seconds since the watch was opened; the number changes with each compilation."""
        return self._seconds

    def add(self, began: float, ended: float) -> None:
        """Add the time of an event that has just ended; events nest, and no second counts twice."""
        if self.is_paused or threading.get_ident() != self._thread:
            return
        while self._spans and self._spans[-1][1] > began:
            inner = self._spans.pop()
            self._seconds -= inner[1] - inner[0]
            began = min(began, inner[0])
        self._spans.append((began, ended))
        self._seconds += ended - began
