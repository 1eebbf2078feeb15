"""Patch attributes of objects, classes and modules that replicas share, for the duration of a block."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_MISSING = object()
_LOCK = threading.RLock()  # `make` may look up an attribute, and so run anybody's code
# By the id of an object and a name: the number of replicas inside the block, the instance's attribute before it, and
# the object, whose id stays unique while it is here.
_ACTIVE: dict[tuple[int, str], tuple[int, object, object]] = {}

# An object, the name of an attribute, and a function that makes the new attribute from the old one.
Patch = tuple[Any, str, Callable[[Any], Any]]


@contextlib.contextmanager
def patched(patches: Sequence[Patch]) -> Iterator[None]:
    """Patch attributes within the block.

    Replicas take turns in a step, and threads run in any order: one may enter before another has left. The first to
    enter patches, the last to leave restores.

    Args:
        patches: What to patch.
    """
    with contextlib.ExitStack() as entered:
        for target, name, make in patches:
            _enter(target, name, make)
            entered.callback(_leave, target, name)
        yield


def _enter(target: Any, name: str, make: Callable[[Any], Any]) -> None:
    with _LOCK:
        inside, before, _ = _ACTIVE.get((id(target), name), (0, vars(target).get(name, _MISSING), target))
        if not inside:
            _set(target, name, make(getattr(target, name)))
        _ACTIVE[id(target), name] = (inside + 1, before, target)


def _leave(target: object, name: str) -> None:
    with _LOCK:
        _restore(target, name)


def _restore(target: object, name: str) -> None:
    inside, before, _ = _ACTIVE.pop((id(target), name))
    if inside > 1:
        _ACTIVE[id(target), name] = (inside - 1, before, target)
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
