"""A list that never grows beyond its limit and still covers everything put into it."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Thinned(Generic[T]):
    """Keeps every item until there are `limit`, then every second, every fourth, and so on.

    Args:
        limit: Most items to keep, at least 2.
    """

    def __init__(self, limit: int) -> None:
        self.items: list[T] = []
        self._limit = limit
        self._stride = 1
        self._skip = 0

    def append(self, item: T) -> None:
        """Put `item` in, if it is its turn."""
        if self._skip:
            self._skip -= 1
            return
        if len(self.items) >= self._limit:
            del self.items[1::2]
            self._stride *= 2
        self.items.append(item)
        self._skip = self._stride - 1
