"""Patch attributes of objects, classes and modules that replicas share, for the time of a block."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_MISSING = object()
# By object and name: the number of replicas inside the block, and the attribute of the instance before it.
_ACTIVE: dict[tuple[int, str], tuple[int, object]] = {}

# An object, the name of an attribute, and a function that makes the new attribute from the old one.
Patch = tuple[Any, str, Callable[[Any], Any]]


@contextlib.contextmanager
def patched(patches: Sequence[Patch]) -> Iterator[None]:
    """Patch attributes within the block.

    Replicas run a step in turns, and one may enter before another has left: the first one in patches, the last one
    out restores.

    Args:
        patches: What to patch.
    """
    for target, name, make in patches:
        inside, before = _ACTIVE.get((id(target), name), (0, vars(target).get(name, _MISSING)))
        if not inside:
            _set(target, name, make(getattr(target, name)))
        _ACTIVE[id(target), name] = (inside + 1, before)
    try:
        yield
    finally:
        for target, name, _ in patches:
            _leave(target, name)


def _leave(target: object, name: str) -> None:
    inside, before = _ACTIVE.pop((id(target), name))
    if inside > 1:
        _ACTIVE[id(target), name] = (inside - 1, before)
    elif before is not _MISSING:
        _set(target, name, before)
    elif isinstance(target, type):
        delattr(target, name)
    else:
        del vars(target)[name]


def _set(target: Any, name: str, value: object) -> None:
    if isinstance(target, type):
        setattr(target, name, value)
    else:
        vars(target)[name] = value  # a layer would track it
