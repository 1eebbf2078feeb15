"""Time that passes only where a program says so."""

from __future__ import annotations

import time


class VirtualTime:
    """A clock for callbacks, and sleeps that move it."""

    def __init__(self) -> None:
        self.now = time.perf_counter()  # from where a `fit` counts

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
