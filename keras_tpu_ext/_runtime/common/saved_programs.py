"""Programs that were compiled before, perhaps elsewhere, and how what they are for differs from what is here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

_SHOWN = 200  # characters of a text in a message


@dataclasses.dataclass(frozen=True)
class Signature:
    """What a program is, without the program."""

    module: str  # the name that JAX gives it, which programs share
    digest: str  # of the lowered program, as `jax/saved_programs.py` has it
    arguments: tuple[str, ...]  # the type and the sharding of each
    options: str  # JAX's options for the compiler, in words


@dataclasses.dataclass(frozen=True)
class SavedProgram:
    """A compiled program."""

    name: str  # such as `"train, 8 steps"`
    steps: int  # the most that it runs
    signature: Signature
    seconds: float  # how long it took to compile
    executable: bytes  # as JAX serialises it: machine code


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return what differs between texts of the same names, with the words that differ."""
    return [
        f"{name}: expected {_only(expected.get(name, ''), found.get(name, ''))}, "
        f"found {_only(found.get(name, ''), expected.get(name, ''))}"
        for name in dict.fromkeys([*expected, *found])
        if expected.get(name, "") != found.get(name, "")
    ]


def _only(text: str, other: str) -> str:
    """Return the words of a text that another does not have, or all if it has them in another order."""
    words = " ".join(word for word in text.split() if word not in other.split())
    words = words or ("no more" if text and other else "none") if set(text.split()) != set(other.split()) else text
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}..."
