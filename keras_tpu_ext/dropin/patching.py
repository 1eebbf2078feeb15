"""Replace or add attributes of the frameworks, for as long as the process lives.

Not as `_runtime` patches, which takes its patches back: this is there before, and a later patch goes round it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras_tpu_ext._runtime.common.patch_table import attribute_of


def replace(target: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace an attribute that is there; of several replacements the last goes round the others.

    Args:
        target: A module or a class.
        name: The attribute's full name, as `_runtime/common/patch_table.py` has it.
        make: Makes the new attribute from the old one.

    Raises:
        LookupError: If the table does not have `name`.
    """
    attribute = attribute_of(name)
    raw = next((vars(cls)[attribute] for cls in getattr(target, "__mro__", ()) if attribute in vars(cls)), None)
    if isinstance(raw, (classmethod, staticmethod)):
        setattr(target, attribute, type(raw)(make(raw.__func__)))
    else:
        setattr(target, attribute, make(getattr(target, attribute)))


def add(target: Any, name: str, value: object) -> None:
    """Add an attribute, unless there is one of this name."""
    if not hasattr(target, name):
        setattr(target, name, value)
