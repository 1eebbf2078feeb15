"""Reading the text of a compiled HLO module: computations, instructions, and what stands behind them.

Only what a report needs is read. The grammar is that of XLA's printer:
https://openxla.org/xla/hlo_dumps
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from keras_tpu_ext.preflight._hlo.shape import Shape, parse_shape

_NAME = r"%?[\w.\-]+"
_BEGIN = re.compile(rf"^(?P<entry>ENTRY )?(?P<name>{_NAME}) \(.*\{{$")
_INSTRUCTION = re.compile(rf"^  (?P<root>ROOT )?(?P<name>{_NAME}) = (?P<rest>.*)$")
_OPERAND = re.compile(r"%([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_OPENS, _CLOSES = "([{", ")]}"


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        name: Its name, without the `%`.
        opcode: Such as `"fusion"` or `"all-reduce-start"`.
        shape: The shape of its result.
        operands: The names of what it reads.
        attributes: The text behind the operands.
        is_root: Whether its result is that of its computation.
    """

    name: str
    opcode: str
    shape: Shape
    operands: tuple[str, ...]
    attributes: str = field(repr=False, default="")
    is_root: bool = False

    @cached_property
    def op_name(self) -> str:
        """Where it comes from in the user's program, as the framework says; empty where nothing is known."""
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""

    @cached_property
    def made(self) -> Shape:
        """The shape of what it writes: that of what is begun has in it what is read meanwhile too."""
        if not self.opcode.endswith("-start") or len(self.shape.parts) < 2 or self.opcode == "all-reduce-start":
            return self.shape
        return self.shape.parts[0 if self.opcode == "copy-start" else 1]

    @cached_property
    def called(self) -> dict[str, str]:
        """The computations that it calls, by their roles."""
        found = dict(_CALLED.findall(self.attributes))
        branches = _BRANCHES.search(self.attributes)
        if branches:
            found |= {f"branch {i}": name for i, name in enumerate(_OPERAND.findall(branches[1]))}
        return found

    @cached_property
    def cycles(self) -> int | None:
        """Cycles that the compiler estimates for it; `None` where it states none."""
        found = _CYCLES.search(self.attributes)
        return int(found[1]) if found else None

    @cached_property
    def trip_count(self) -> int | None:
        """How often the body of a loop runs; `None` where the compiler does not know."""
        found = self._config.get("known_trip_count", {}).get("n")
        return None if found is None else int(found)

    @cached_property
    def _config(self) -> dict[str, Any]:
        begin = self.attributes.find("backend_config={")
        if begin < 0:
            return {}
        begin += len("backend_config=")
        try:
            config, _ = json.JSONDecoder().raw_decode(self.attributes[begin:])
        except json.JSONDecodeError:
            return {}
        return config if isinstance(config, dict) else {}


@dataclass(frozen=True)
class Computation:
    """A list of instructions, in the order in which they run where the module is scheduled."""

    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """The instructions by name."""
        return {instruction.name: instruction for instruction in self.instructions}

    @property
    def root(self) -> Instruction:
        """The instruction whose result is that of the computation."""
        return next((one for one in self.instructions if one.is_root), self.instructions[-1])


@dataclass(frozen=True)
class Module:
    """A compiled program."""

    entry: Computation
    computations: Mapping[str, Computation]

    @classmethod
    def parse(cls, text: str) -> Module:
        """Read the text that XLA prints of a module.

        Raises:
            ValueError: If it has no entry computation.
        """
        computations: dict[str, Computation] = {}
        lines: list[str] = []
        entry, name, is_entry = None, "", False
        for line in text.splitlines():
            if not name:
                begin = _BEGIN.match(line)
                if begin:
                    name, is_entry, lines = begin["name"].lstrip("%"), bool(begin["entry"]), []
            elif line.startswith("}"):
                computations[name] = Computation(name, tuple(_instructions(lines)))
                entry = computations[name] if is_entry else entry
                name = ""
            else:
                lines.append(line)
        if entry is None:
            raise ValueError("the text has no ENTRY computation")
        return cls(entry, computations)

    def inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yield the instructions of what `instruction` calls, at any depth."""
        for name in instruction.called.values():
            for inner in self.computations[name].instructions if name in self.computations else ():
                yield inner
                yield from self.inside(inner)


def _instructions(lines: list[str]) -> Iterator[Instruction]:
    for line in lines:
        found = _INSTRUCTION.match(line)
        if found:
            yield _instruction(found["name"].lstrip("%"), found["rest"], bool(found["root"]))


def _instruction(name: str, rest: str, is_root: bool) -> Instruction:
    end = _end_of_shape(rest)
    opcode, _, behind = rest[end:].lstrip().partition("(")
    close = _balanced(behind, 1)
    operands = tuple(_OPERAND.findall(behind[:close]))
    return Instruction(name, opcode, parse_shape(rest[:end]), operands, behind[close + 1 :], is_root)


def _end_of_shape(text: str) -> int:
    """Return where the shape ends with which `text` begins; blanks may stand inside of brackets only."""
    depth = 0
    for i, character in enumerate(text):
        depth += (character in _OPENS) - (character in _CLOSES)
        if character == " " and not depth:
            return i
    return len(text)


def _balanced(text: str, depth: int) -> int:
    """Return where the brackets close that are open before `text`."""
    for i, character in enumerate(text):
        depth += (character in _OPENS) - (character in _CLOSES)
        if not depth:
            return i
    return len(text)
