"""Check what stands in a file before anything uses it.

A check takes a value and where it stands, returns the value, and raises a `MismatchError` if it is another one than
the file must have there. Checks are combined: `fields({"shards": mapping(integer(minimum=0))})`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, get_type_hints

Check: TypeAlias = Callable[[Any, str], Any]

_SHOWN = 60  # characters of a value in an error
LARGEST = 2**63 - 1


class MismatchError(Exception):
    """Something in a file is not what must stand there.

    Args:
        where: Where it stands, such as `shards["a.tfrecord"]`.
        needed: What must stand there.
        got: What does.
    """

    def __init__(self, where: str, needed: str, got: Any) -> None:
        super().__init__(f"{where or 'it'} must be {needed}; got {shown(got)}")


def parse_json(text: str | bytes) -> Any:
    """Return what JSON text holds."""
    try:
        return json.loads(text, object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        raise MismatchError("the text", f"JSON ({error})", text[:_SHOWN]) from None


def shown(value: Any) -> str:
    """Return a short text for a value of a file, without control characters."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = ascii(list(value)) if isinstance(value, dict) else ascii(value)
    text = f"an object with the keys {text}" if isinstance(value, dict) else text
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def plain(value: str) -> str:
    """Return a text of a file without control characters, shortened."""
    return shown(value)[1:-1] if len(value) <= _SHOWN else f"{shown(value)[1:]}"


def integer(minimum: int = 0, maximum: int = LARGEST) -> Check:
    """Return the check of an integer from `minimum` to `maximum`."""
    bounds = f"of at least {minimum}" if maximum == LARGEST else f"from {minimum} to {maximum}"

    def check(value: Any, where: str) -> int:
        if type(value) is not int or not minimum <= value <= maximum:
            raise MismatchError(where, f"an integer {bounds}", value)
        return value

    return check


def number(value: Any, where: str) -> float:
    """Check a finite number."""
    is_number = type(value) is float or (type(value) is int and abs(value) <= LARGEST)
    if not is_number or not math.isfinite(value):
        raise MismatchError(where, "a finite number", value)
    return float(value)


def anything(value: Any, where: str) -> Any:
    """Take a value as it is."""
    return value


def _of_type(kind: type, needed: str) -> Check:
    def check(value: Any, where: str) -> Any:
        if type(value) is not kind:
            raise MismatchError(where, needed, value)
        return value

    return check


boolean, text = _of_type(bool, "true or false"), _of_type(str, "a text")


def matching(pattern: re.Pattern[str], needed: str) -> Check:
    """Return the check of a text that a pattern matches."""

    def check(value: Any, where: str) -> str:
        if type(value) is not str or not pattern.fullmatch(value):
            raise MismatchError(where, needed, value)
        return value

    return check


def file_name(value: Any, where: str) -> str:
    """Check the name of a file in the same folder: never a path."""
    if type(value) is not str or value in ("", ".", "..") or "/" in value or "\\" in value or "\0" in value:
        raise MismatchError(where, "the plain name of a file", value)
    return value


def one_of(*values: str) -> Check:
    """Return the check of one of some texts."""

    def check(value: Any, where: str) -> str:
        if type(value) is not str or value not in values:
            raise MismatchError(where, f"one of {', '.join(map(repr, values))}", value)
        return value

    return check


def optional(check: Check) -> Check:
    """Return the check of a value that may be null."""
    return lambda value, where: None if value is None else check(value, where)


def list_of(check: Check) -> Check:
    """Return the check of a list."""

    def check_all(value: Any, where: str) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise MismatchError(where, "a list", value)
        return [check(one, f"{where}[{number}]") for number, one in enumerate(value)]

    return check_all


def row(*checks: Check) -> Check:
    """Return the check of a list with one value for each of `checks`, which returns a tuple."""

    def check_all(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)) or len(value) != len(checks):
            raise MismatchError(where, f"a list of {len(checks)}", value)
        pairs = enumerate(zip(checks, value, strict=True))
        return tuple([check(one, f"{where}[{number}]") for number, (check, one) in pairs])

    return check_all


def mapping(check: Check, keys: Check = text) -> Check:
    """Return the check of an object whose values all have one check, as have its keys."""

    def check_all(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise MismatchError(where, "an object", value)
        return {keys(name, f"a key of {where}"): check(one, f"{where}[{shown(name)}]") for name, one in value.items()}

    return check_all


def fields(checks: Mapping[str, Check]) -> Check:
    """Return the check of an object with these keys and no others."""

    def check_all(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise MismatchError(where, "an object", value)
        inside = f"{where}." if where else ""
        for name in value:
            if name not in checks:
                raise MismatchError(where, f"an object with no other keys than {', '.join(checks)}", name)
        for name in checks:
            if name not in value:
                raise MismatchError(where, f"an object with the key {name!r}", value)
        return {name: check(value[name], f"{inside}{name}") for name, check in checks.items()}

    return check_all


def record(kind: Any, **checks: Check) -> Check:
    """Return the check of an object with the fields of a class, of which it returns an instance.

    A field that is annotated as `int`, `float`, `bool` or `str`, or as that or `None`, is checked for it: an integer
    of at least 0, a finite number. `checks` has the checks of the others.
    """
    known: dict[Any, Check] = {int: integer(), float: number, bool: boolean, str: text}
    known |= {one | None: optional(check) for one, check in known.items()}
    of_fields = fields({name: checks.get(name) or known[one] for name, one in get_type_hints(kind).items()})
    return lambda value, where: kind(**of_fields(value, where))


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found
