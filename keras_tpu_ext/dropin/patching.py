"""Replace or add attributes of the frameworks, for as long as the process lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras_tpu_ext._runtime.common import patches


def replace(target: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace an attribute that is there.

    Args:
        target: A module or a class.
        name: The attribute's full name, as `_runtime/common/patch_table.py` has it.
        make: Makes the new attribute from the old one.

    Raises:
        LookupError: If the table does not have `name`.
    """
    patches.install([(target, name, make)])


def add(target: Any, name: str, value: object) -> None:
    """Add an attribute, unless there is one of this name."""
    if not hasattr(target, name):
        setattr(target, name, value)
