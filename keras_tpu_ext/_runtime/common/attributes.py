"""Attributes that have other values within a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


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
