"""Argument checks with a common error format.

The format is "CALLER: `name` must be NEEDED; got VALUE. Write EXAMPLE."

Each check returns the argument as its plain Python type. `example` is a value that works: an object, or source code
as a string, so that `example=20` ends in "Write window=20." and `example='"auto"'` in 'Write steps="auto".'
"""

from __future__ import annotations

import json
import math
import numbers
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from keras_tpu_ext.errors import ArgumentError

T = TypeVar("T")


def argument_error(caller: str, name: str, needed: str, got: str, write: str) -> ArgumentError:
    """Return the error for an invalid argument.

    Args:
        caller: The function or class that takes it, such as `"Throughput"`.
        name: Its name, such as `"window"`.
        needed: What it must be, such as `"an integer of at least 1"`.
        got: The given value, such as `repr(value)`.
        write: The code to write instead.
    """
    return ArgumentError(f"{caller}: `{name}` must be {needed}; got {got}. Write {write}.")


def integer(
    caller: str,
    name: str,
    value: Any,
    *,
    minimum: int = 1,
    maximum: int | None = None,
    what: str = "an integer",
    example: object,
) -> int:
    """Return `value` as an `int` from `minimum` to `maximum`."""
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or found < minimum or (maximum is not None and found > maximum):
        bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise argument_error(caller, name, f"{what} {bounds}", repr(value), _assignment(name, example))
    return found


def number(
    caller: str,
    name: str,
    value: Any,
    *,
    above: float | None = None,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    what: str = "a number",
    example: object,
) -> float:
    """Return `value` as a finite `float`, `above` a bound or from `minimum` to `maximum`."""
    try:
        found = float(value) if is_number(value) else math.nan
    except OverflowError:  # an integer beyond the range of floats
        found = math.inf
    low_enough = minimum <= found <= maximum and math.isfinite(found)
    if not low_enough or (above is not None and found <= above):
        needed = f"{what} {_bounds(above, minimum, maximum)}".rstrip()
        raise argument_error(caller, name, needed, repr(value), _assignment(name, example))
    return found


def one_of(caller: str, name: str, value: T, choices: Sequence[Any], *, example: object = None) -> T:
    """Return `value`, which is one of `choices`: strings, `None` or booleans."""
    # Not by ==, because True == 1 and an array has no truth value.
    if any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        return value
    words = [json.dumps(choice) if isinstance(choice, str) else repr(choice) for choice in choices]
    example = next(word for word in words if word.startswith('"')) if example is None else example
    needed = f"{', '.join(words[:-1])} or {words[-1]}"
    raise argument_error(caller, name, needed, repr(value), _assignment(name, example))


def function(caller: str, name: str, value: Callable[..., T], *, what: str, example: str) -> Callable[..., T]:
    """Return `value`, which can be called; `what` says what it returns."""
    if not callable(value):
        raise argument_error(caller, name, f"a function that returns {what}", repr(value), _assignment(name, example))
    return value


def path(value: str | bytes | os.PathLike[Any]) -> str:
    """Return a path that a user gave, with `~` for his home folder; a URL as it is."""
    return os.path.expanduser(os.fsdecode(value))


def optional(check: Callable[..., T], caller: str, name: str, value: Any, **options: Any) -> T | None:
    """Return `None` for `None`, else the result of `check` for `value`."""
    return None if value is None else check(caller, name, value, **options)


def is_number(value: Any) -> bool:
    """Whether `value` is a real number, including NumPy's, and not a boolean."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _bounds(above: float | None, minimum: float, maximum: float) -> str:
    lower = "" if minimum == -math.inf else f"of at least {minimum:g}"
    if above is not None:
        lower = f"above {above:g}"
    if maximum == math.inf:
        return lower
    return f"from {minimum:g} to {maximum:g}" if above is None else f"{lower} and at most {maximum:g}"


def _assignment(name: str, example: object) -> str:
    return f"{name}={example}" if isinstance(example, str) else f"{name}={example!r}"
