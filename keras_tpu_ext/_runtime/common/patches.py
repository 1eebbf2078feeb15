"""Attributes that have other values within a block: of our own objects, and of Keras, TensorFlow and JAX.

A patch of theirs takes back its own wrapper and nothing else. A function gets a dispatcher, which calls the original
again when the last block has been left: so it may stay inside a wrapper that somebody has put round it. Every patched
attribute is in `patch_table.py`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras_tpu_ext._runtime.common.missing_names import gone
from keras_tpu_ext._runtime.common.patch_table import PATCHED


@contextlib.contextmanager
def temporarily(thing: object, **values: object) -> Iterator[None]:
    """Within the block, attributes of `thing` have these values; those of a `threading.local`, in this thread."""
    before = {name: getattr(thing, name) for name in values}
    for name, value in values.items():
        setattr(thing, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(thing, name, value)


@contextlib.contextmanager
def attributes_restored(thing: object) -> Iterator[None]:
    """After the block, `thing` has the attributes that it had before, and no others."""
    before = dict(vars(thing))
    try:
        yield
    finally:
        vars(thing).clear()
        vars(thing).update(before)


# An object, the name of its attribute in the table, and a function that makes the new attribute from the old one.
Patch = tuple[Any, str, Callable[[Any], Any]]

_NAMES = {row.name: re.split("[. ]", row.name)[-1] for row in PATCHED}  # the last part of each name in the table
_MISSING: Any = object()
_LOCK = threading.RLock()  # `make` may look up an attribute, and so run anybody's code


class patched:  # noqa: N801, a context manager like those of contextlib
    """Patch attributes within a block, which may be entered again, also by other threads.

    Replicas take turns in a step, and threads run in any order: one may enter before another has left. The first to
    enter patches, the last to leave takes the patch back.
    """

    def __init__(self, patches: Sequence[Patch]) -> None:
        self._patches = patches

    def __enter__(self) -> None:
        for i, patch in enumerate(self._patches):
            try:
                _enter(*patch)
            except BaseException:
                _leave(self._patches[:i])
                raise

    def __exit__(self, *error: object) -> None:
        _leave(self._patches)


def install(patches: Sequence[Patch]) -> None:
    """Patch attributes for good; those of classes and modules only once, however often this is called."""
    for target, path, make in patches:
        if isinstance(target, (type, types.ModuleType)):
            with _LOCK:
                known = _attribute(target, path)
                known.for_good = known.for_good or make
                known.put()
        else:  # nothing is to keep somebody's object alive
            name = attribute_of(path)
            _set(target, name, make(getattr(target, name)))


def attribute_of(path: str) -> str:
    """Return the name of an attribute in the table, without those of the module and the class that it is in."""
    if path not in _NAMES:
        raise LookupError(
            f"{path!r} is to be patched, and is not in common/patch_table.py: write it there, with the reason"
        )
    return _NAMES[path]


class _Attribute:
    """An attribute that is patched or, of a class or module, has been."""

    def __init__(self, target: Any, name: str) -> None:
        self.target, self.name = target, name  # the id of the object stays unique while it is here
        self.inside = 0  # the number of blocks that are open
        # What makes the attribute: for good, and from that, in a block.
        self.for_good: Callable[[Any], Any] | None = None
        self.in_block: Callable[[Any], Any] | None = None
        self.before = self.found()
        self.installed: Any = _MISSING
        self.original: Any = None
        self.current: Any = None  # what the dispatcher calls

    def found(self) -> object:
        """Return the attribute as the object itself has it."""
        return vars(self.target).get(self.name, _MISSING)

    def put(self) -> None:
        """Patch, as `for_good` and `in_block` say."""
        kind = self._kind()
        if self.installed is _MISSING or self.found() is not self.installed:
            self.original = getattr(self.target, self.name)
            self.original = self.original.__func__ if kind is classmethod else self.original
        made = self.original
        for make in (self.for_good, self.in_block):
            made = made if make is None else make(made)
        if not inspect.isroutine(self.original):
            self.installed = made
        elif self.installed is _MISSING:
            self.installed = self._dispatcher(made) if kind is None else kind(self._dispatcher(made))
        self.current = made
        _set(self.target, self.name, self.installed)

    def _kind(self) -> type[classmethod[Any, Any, Any]] | type[staticmethod[Any, Any]] | None:
        if not isinstance(self.target, type):
            return None
        raw = next((vars(cls)[self.name] for cls in self.target.__mro__ if self.name in vars(cls)), None)
        return type(raw) if isinstance(raw, (classmethod, staticmethod)) else None

    def _dispatcher(self, made: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(made)
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            return self.current(*args, **kwargs)

        dispatch.__wrapped__ = self.original  # not `made`, which may hold the data of a `fit`
        return dispatch

    def take_back(self) -> None:
        """Remove the patch of a block, or leave the dispatcher without its effect inside somebody's wrapper."""
        if self.for_good not in (None, _unchanged):
            self.current = self.for_good(self.original)
            return
        self.current = self.original
        if self.found() is not self.installed:
            return
        if self.before is not _MISSING:
            _set(self.target, self.name, self.before)
        elif isinstance(self.target, type):
            delattr(self.target, self.name)
        else:
            del vars(self.target)[self.name]


_ATTRIBUTES: dict[tuple[int, str], _Attribute] = {}


def _attribute(target: Any, path: str) -> _Attribute:
    """Return what is known of an attribute, which may be patched already."""
    name = attribute_of(path)
    if not hasattr(target, name):
        raise gone(path)
    known = _ATTRIBUTES.get((id(target), name))
    # The same dispatcher as before, which somebody may have kept, unless it is inside his wrapper now.
    if known is None or not (known.inside or known.found() is known.before or known.found() is known.installed):
        inside = known
        known = _ATTRIBUTES[id(target), name] = _Attribute(target, name)
        if inside is not None and inside.for_good is not None:
            known.for_good = _unchanged  # it is patched for good inside of that wrapper
    return known


def _unchanged(attribute: Any) -> Any:
    return attribute


def _enter(target: Any, path: str, make: Callable[[Any], Any]) -> None:
    with _LOCK:
        known = _attribute(target, path)
        if not known.inside:
            known.in_block = make
            known.put()
        known.inside += 1


def _leave(patches: Sequence[Patch]) -> None:
    with _LOCK:
        for target, path, _ in reversed(patches):
            key = id(target), attribute_of(path)
            attribute = _ATTRIBUTES[key]
            attribute.inside -= 1
            if not attribute.inside:
                attribute.in_block = None
                attribute.take_back()
                if not isinstance(target, (type, types.ModuleType)):
                    del _ATTRIBUTES[key]


def _set(target: Any, name: str, value: object) -> None:
    if isinstance(target, type):
        setattr(target, name, value)
    else:
        vars(target)[name] = value  # a layer would track it
