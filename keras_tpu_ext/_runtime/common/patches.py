"""Methods that are another one for the time of a block, on objects that the replicas share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_NOTHING = object()
_INSIDE: dict[tuple[int, str], tuple[int, Any]] = {}  # how many replicas are in the block, what was there before


@contextlib.contextmanager
def patched(places: Sequence[tuple[Any, str, Callable[[Any], Any]]]) -> Iterator[None]:
    """Within the block every object of `places` has something else under a name.

    Replicas run a step in turns, and one may enter before another has left: the first one in puts the new thing
    there, and the last one out takes it away.

    Args:
        places: Tuples of an object, a name and a function that makes the new attribute from the old one.
    """
    for thing, name, make in places:
        inside, before = _INSIDE.get((id(thing), name), (0, vars(thing).get(name, _NOTHING)))
        if not inside:
            vars(thing)[name] = make(getattr(thing, name))
        _INSIDE[id(thing), name] = (inside + 1, before)
    try:
        yield
    finally:
        for thing, name, _ in places:
            _leave(thing, name)


def _leave(thing: Any, name: str) -> None:
    inside, before = _INSIDE.pop((id(thing), name))
    if inside > 1:
        _INSIDE[id(thing), name] = (inside - 1, before)
    elif before is _NOTHING:
        del vars(thing)[name]
    else:
        vars(thing)[name] = before
