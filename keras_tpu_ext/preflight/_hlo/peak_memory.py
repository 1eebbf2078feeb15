"""Which buffers are in HBM when it is fullest, by following a scheduled module from begin to end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from keras_tpu_ext.preflight._hlo.module import Computation, Instruction, Module
from keras_tpu_ext.preflight._hlo.shape import Shape

# What gives another name, or the parts of it, to memory that is there already.
_ALIASES = frozenset(
    ["tuple", "get-tuple-element", "bitcast", "while", "opt-barrier", "add-dependency", "async-update"]
)
_NO_MEMORY = frozenset(["parameter", "constant", "after-all", "partition-id", "replica-id"])


class LiveBuffer(NamedTuple):
    """A buffer in HBM.

    Attributes:
        instruction: What writes it.
        shape: What is in it.
        bytes: Its size, padding included.
    """

    instruction: Instruction
    shape: Shape
    bytes: int


def buffers_at_peak(module: Module) -> list[LiveBuffer]:
    """Return the temporary buffers that are in HBM when these are largest in sum, the largest first.

    Arguments of the program are not among them, and what the compiler shares between buffers in ways that its text
    does not tell is counted twice: the sum is that of the compiler to about a tenth.
    """
    return sorted(_peak(module, module.entry), key=lambda buffer: buffer.bytes, reverse=True)


def _peak(module: Module, computation: Computation) -> list[LiveBuffer]:
    holders = _holders(computation)
    last_use = _last_uses(computation, holders)
    live: dict[str, list[LiveBuffer]] = {}
    size = most = 0
    best: list[LiveBuffer] = []
    for i, instruction in enumerate(computation.instructions):
        own = list(_allocated(instruction))
        # What it calls writes the result, so that the two are not there together.
        for added in (_inside(module, instruction), own):
            here = size + _sum(added)
            if here > most:
                most, best = here, [*(buffer for some in live.values() for buffer in some), *added]
        live[instruction.name] = own
        size += _sum(own)
        for name in [name for name in live if last_use.get(name, i) <= i]:
            size -= _sum(live.pop(name))
    return best


def _allocated(instruction: Instruction) -> Iterable[LiveBuffer]:
    if _is_alias(instruction) or instruction.opcode in _NO_MEMORY:
        return
    for shape in instruction.made.arrays():
        if shape.space == 0 and shape.padded_bytes:
            yield LiveBuffer(instruction, shape, shape.padded_bytes)


def _is_alias(instruction: Instruction) -> bool:
    is_end = instruction.opcode.endswith("-done")
    return is_end or instruction.opcode in _ALIASES or "output_to_operand_aliasing" in instruction.attributes


def _inside(module: Module, instruction: Instruction) -> list[LiveBuffer]:
    """Return what is there at most in a loop's body, a called computation, or the branch that takes most."""
    if instruction.opcode not in ("while", "conditional", "call"):
        return []
    return max((_peak(module, module.computations[name]) for name in instruction.called.values()), key=_sum)


def _sum(buffers: list[LiveBuffer]) -> int:
    return sum(buffer.bytes for buffer in buffers)


def _holders(computation: Computation) -> dict[str, frozenset[str]]:
    """Return for each result the instructions in whose memory it is."""
    found: dict[str, frozenset[str]] = {}
    for instruction in computation.instructions:
        own = frozenset([instruction.name])
        others = (found.get(name, frozenset()) for name in instruction.operands)
        found[instruction.name] = own.union(*others) if _is_alias(instruction) else own
    return found


def _last_uses(computation: Computation, holders: dict[str, frozenset[str]]) -> dict[str, int]:
    """Return for each instruction the place of the last one that reads what is in its memory."""
    last: dict[str, int] = {}
    for i, instruction in enumerate(computation.instructions):
        for name in instruction.operands:
            for holder in holders.get(name, ()):
                last[holder] = i
    for holder in holders.get(computation.root.name, ()):
        last[holder] = len(computation.instructions)
    return last
