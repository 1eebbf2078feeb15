"""Parser for the text of a compiled HLO module, as far as a report needs it.

Source of the grammar: https://openxla.org/xla/hlo_dumps
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from keras_tpu_ext.preflight._hlo.shape import CLOSES, Shape, find_outside, parse_shape

_NAME = r"%?[\w.\-]+"
_COMPUTATION = re.compile(rf"^(?P<entry>ENTRY )?(?P<name>{_NAME}) \(.*\{{$")
_COMPUTATION_END = re.compile(r"^\}(, execution_thread=.*)?$")
_INSTRUCTION = re.compile(rf"^  (?P<root>ROOT )?(?P<name>{_NAME}) = (?P<rest>.*)$")
_OPERAND = re.compile(r"%([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_CALLED_COMPUTATION = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_ESTIMATED_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_ALIASES_OF_RESULT = "input_output_alias={"
_ALIASED = re.compile(r"\{(\d+)\}: \(")
_ELEMENT = re.compile(r"\bindex=(\d+)")
COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)


@dataclass(frozen=True)
class Instruction:
    """An HLO instruction."""

    name: str  # name without the `%`
    opcode: str  # opcode, such as `"fusion"` or `"all-reduce-start"`
    shape: Shape  # shape of the result
    operands: tuple[str, ...]  # names of the operands
    attributes: str = field(repr=False, default="")  # text after the operands
    is_root: bool = False  # whether it is the root of its computation
    literal: str = ""  # the value of a constant, as text; empty for any other

    @cached_property
    def op_name(self) -> str:
        """The framework's name stack, such as `"jit(step)/jvp(dense)/dot_general"`; empty if there is none."""
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""

    @cached_property
    def written_shape(self) -> Shape:
        """The shape of the buffers it writes; an asynchronous start has its operands in `shape` too."""
        if (
            not self.opcode.endswith("-start")
            or len(self.shape.tuple_shapes) < 2
            or self.opcode == "all-reduce-start"
        ):
            return self.shape
        return self.shape.tuple_shapes[0 if self.opcode == "copy-start" else 1]

    @cached_property
    def called_computations(self) -> dict[str, str]:
        """Names of the computations it calls, by role such as `"body"`."""
        found = dict(_CALLED_COMPUTATION.findall(self.attributes))
        branches = _BRANCHES.search(self.attributes)
        if branches:
            found |= {f"branch {i}": name for i, name in enumerate(_OPERAND.findall(branches[1]))}
        return found

    @cached_property
    def element(self) -> int | None:
        """The element that it takes out of a tuple; `None` if it does not take one."""
        found = _ELEMENT.search(self.attributes) if self.opcode == "get-tuple-element" else None
        return None if found is None else int(found[1])

    @cached_property
    def aliased_elements(self) -> frozenset[int]:
        """The elements of its result in the memory of operands: `output_to_operand_aliasing={{0}: (0, {})}`."""
        return frozenset(map(int, _ALIASED.findall(self.attributes)))

    @cached_property
    def estimated_cycles(self) -> int | None:
        """Clock cycles estimated by the compiler; `None` if it states none, or about 2**63, which is no estimate."""
        found = _ESTIMATED_CYCLES.search(self.attributes)
        return int(found[1]) if found and int(found[1]) < 2**62 else None

    @cached_property
    def trip_count(self) -> int | None:
        """Number of iterations of a loop stated by the compiler; `None` if it states none."""
        found = self.backend_config.get("known_trip_count", {}).get("n")
        return None if found is None else int(found)

    @cached_property
    def backend_config(self) -> dict[str, Any]:
        """The compiler's own notes; empty if there are none."""
        start = self.attributes.find("backend_config={")
        if start < 0:
            return {}
        start += len("backend_config=")
        try:
            config, _ = json.JSONDecoder().raw_decode(self.attributes[start:])
        except json.JSONDecodeError:
            return {}
        return config if isinstance(config, dict) else {}


@dataclass(frozen=True)
class Computation:
    """An HLO computation; its instructions are in the order in which a scheduled module runs them."""

    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """The instructions by name."""
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """The shapes of the instructions' results, by name."""
        return {instruction.name: instruction.shape for instruction in self.instructions}

    def operand_shapes(self, instruction: Instruction) -> list[Shape]:
        """Return the shapes of the operands of one of the instructions."""
        return [self.shapes[name] for name in instruction.operands if name in self.shapes]

    @property
    def root(self) -> Instruction:
        """The instruction that makes the computation's result."""
        return next((one for one in self.instructions if one.is_root), self.instructions[-1])


@dataclass(frozen=True)
class Module:
    """An HLO module."""

    entry: Computation  # the computation that the program runs
    computations: Mapping[str, Computation]  # all computations, by name
    # The elements of its result that are written into the memory of arguments.
    donated_results: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Module:
        """Parse the text that XLA prints of a module."""
        computations: dict[str, Computation] = {}
        lines: list[str] = []
        entry, name, is_entry = None, "", False
        for line in text.splitlines():
            if not name:
                start = _COMPUTATION.match(line)
                if start:
                    name, is_entry, lines = start["name"].lstrip("%"), bool(start["entry"]), []
            elif _COMPUTATION_END.match(line):
                computations[name] = Computation(name, tuple(_parse_instructions(lines)))
                entry = computations[name] if is_entry else entry
                name = ""
            elif lines and not _INSTRUCTION.match(line):  # metadata of a kernel spans several lines
                lines[-1] += line
            else:
                lines.append(line)
        if entry is None:
            raise ValueError("the text has no ENTRY computation")
        computations = {name: _with_called_collectives(one, computations) for name, one in computations.items()}
        return cls(computations[entry.name], computations, _donated_results(text))

    def called_computations(self, instruction: Instruction) -> Iterator[Computation]:
        """Yield all computations that `instruction` calls, recursively."""
        for name in instruction.called_computations.values():
            if name in self.computations:
                yield self.computations[name]
                for inner in self.computations[name].instructions:
                    yield from self.called_computations(inner)

    def called_instructions(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yield the instructions of all computations that `instruction` calls, recursively."""
        for name in instruction.called_computations.values():
            for inner in self.computations[name].instructions if name in self.computations else ():
                yield inner
                yield from self.called_instructions(inner)


def _with_called_collectives(computation: Computation, computations: Mapping[str, Computation]) -> Computation:
    """Return a computation in which a collective that a SparseCore does is written as any asynchronous collective.

    The compiler writes it as a call that starts and ends: `call-start(%gradient, %token), to_apply=%called`.
    """
    kinds: dict[str, str] = {}
    instructions = list(computation.instructions)
    for i, instruction in enumerate(instructions):
        if instruction.opcode == "call-start":
            collective = computations[instruction.called_computations["to_apply"]].root
            if collective.opcode in COLLECTIVES:
                kinds[instruction.name] = collective.opcode
                instructions[i] = _started(collective, instruction)
        elif instruction.opcode == "call-done" and instruction.operands[0] in kinds:
            instructions[i] = replace(instruction, opcode=f"{kinds[instruction.operands[0]]}-done")
    return Computation(computation.name, tuple(instructions)) if kinds else computation


def _started(collective: Instruction, call: Instruction) -> Instruction:
    """Return the instruction that starts a collective, given the call that does."""
    opcode = f"{collective.opcode}-start"
    # The operands are in the shape too, but for an all-reduce.
    shape = call.shape.tuple_shapes[1] if opcode == "all-reduce-start" else call.shape
    operands = call.operands[: len(collective.operands)]  # and a token
    return replace(call, opcode=opcode, shape=shape, operands=operands, attributes=collective.attributes)


def _donated_results(text: str) -> frozenset[int]:
    """Return the elements of the result that alias arguments: `input_output_alias={ {0}: (3, {}, may-alias) }`."""
    _, found, rest = text.partition("\n")[0].partition(_ALIASES_OF_RESULT)
    rest = rest[: find_outside(rest, CLOSES)] if found else ""
    return frozenset(map(int, _ALIASED.findall(rest)))


def _parse_instructions(lines: list[str]) -> Iterator[Instruction]:
    for line in lines:
        found = _INSTRUCTION.match(line)
        if found:
            yield _parse_instruction(found["name"].lstrip("%"), found["rest"], bool(found["root"]))


def _parse_instruction(name: str, rest: str, is_root: bool) -> Instruction:
    end = find_outside(rest, " ")
    opcode, _, rest_of_line = rest[end:].lstrip().partition("(")
    close = find_outside(rest_of_line, CLOSES)
    inside = rest_of_line[:close]
    literal = inside if opcode == "constant" else ""
    operands = tuple(_OPERAND.findall(inside))
    return Instruction(name, opcode, parse_shape(rest[:end]), operands, rest_of_line[close + 1 :], is_root, literal)
