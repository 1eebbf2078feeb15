"""Replacing methods of objects for the time of a block, while several replicas share these objects."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# An object, the name of an attribute of it, and what makes the new attribute from the old one.
Patch = tuple[Any, str, Callable[[Any], Any]]

_NOTHING = object()
_INSIDE: dict[tuple[int, str], tuple[int, Any]] = {}  # how many replicas are in the block, what was there before


@contextlib.contextmanager
def patched(patches: Sequence[Patch]) -> Iterator[None]:
    """Within the block replace attributes of objects.

    Replicas run a step in turns, and one may enter before another has left: the first one in replaces an attribute,
    and the last one out restores it.
    """
    for thing, name, make in patches:
        inside, before = _INSIDE.get((id(thing), name), (0, vars(thing).get(name, _NOTHING)))
        if not inside:
            thing.__dict__[name] = make(getattr(thing, name))
        _INSIDE[id(thing), name] = (inside + 1, before)
    try:
        yield
    finally:
        for thing, name, _ in patches:
            _leave(thing, name)


def _leave(thing: Any, name: str) -> None:
    inside, before = _INSIDE.pop((id(thing), name))
    if inside > 1:
        _INSIDE[id(thing), name] = (inside - 1, before)
    elif before is _NOTHING:
        del vars(thing)[name]
    else:
        vars(thing)[name] = before
