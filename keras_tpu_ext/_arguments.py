"""Checks of the arguments of callbacks and layers."""

from __future__ import annotations

import math
import numbers
import operator

from keras_tpu_ext.errors import ArgumentError


def whole_number(owner: str, name: str, value: object, *, least: int, write: int) -> int:
    """Return `value` as an `int` of at least `least`.

    Args:
        owner: Name of the class that takes the argument.
        name: Name of the argument.
        value: What came.
        least: Smallest value that can work.
        write: A value to suggest.

    Raises:
        ArgumentError: If `value` is not a whole number, or is too small.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or number < least:
        raise ArgumentError(
            f"{name} must be a whole number of at least {least}; it came as {value!r}. Write: {owner}({name}={write})"
        )
    return number


def probability(owner: str, name: str, value: object, *, write: float) -> float:
    """Return `value` as a `float` from 0 to 1.

    Args:
        owner: Name of the class that takes the argument.
        name: Name of the argument.
        value: What came.
        write: A value to suggest.

    Raises:
        ArgumentError: If `value` is no number from 0 to 1.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 <= float(value) <= 1:  # type: ignore[arg-type]
        raise ArgumentError(
            f"{name} must be a probability, a number from 0 to 1; it came as {value!r}. "
            f"Write: {owner}({name}={write})"
        )
    return float(value)  # type: ignore[arg-type]


def positive_number(owner: str, name: str, value: object, *, of: str, write: str) -> float:
    """Return `value` as a `float` above nought.

    Args:
        owner: Name of the class that takes the argument.
        name: Name of the argument.
        value: What came.
        of: What the argument must be, in words.
        write: A value to suggest.

    Raises:
        ArgumentError: If `value` is no number, not above nought, or infinite.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 < float(value) < math.inf:  # type: ignore[arg-type]
        raise ArgumentError(f"{name} must be {of}; it came as {value!r}. Write: {owner}({name}={write})")
    return float(value)  # type: ignore[arg-type]
