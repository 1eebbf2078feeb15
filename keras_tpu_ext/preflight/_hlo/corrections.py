"""Corrections of estimates, as measured on real chips: of copies and of collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from keras_tpu_ext.preflight._hlo.module import Instruction, Module
from keras_tpu_ext.preflight._hlo.shape import Shape

Name = Literal["copies", "collectives"]


class Line(NamedTuple):
    """A line through measured times: `latency_s + bytes / (efficiency * nominal bandwidth)`."""

    latency_s: float  # seconds that it takes for zero bytes
    efficiency: float  # fraction of the nominal bandwidth that is reached

    def seconds(self, size: float, bandwidth: float) -> float:
        """Return the time for `size` bytes, with the nominal bandwidth in bytes/s."""
        return self.latency_s + size / (self.efficiency * bandwidth)


# The corrections to apply, each with its measurement on the generation.
Corrections = Mapping[Name, Line]

# A vector unit does this many of them in the time that the memory takes to deliver a number.
_MOST_OPERATIONS = 4
_MOVES = frozenset(
    "parameter constant tuple get-tuple-element bitcast broadcast convert iota".split()  # noqa: SIM905
)
_OPERATIONS = frozenset(
    "add subtract multiply maximum minimum negate abs compare select and or not clamp".split()  # noqa: SIM905
)


def is_copy(instruction: Instruction, operands: Sequence[Shape], module: Module) -> bool:
    """Return whether an instruction only moves numbers, in their order, with at most a few operations for each."""
    shapes = [one for shape in (*operands, instruction.shape) for one in shape.leaves()]
    layouts = {
        (one.minor_to_major, one.tiles[:1]) for one in shapes if one.dimensions == instruction.shape.dimensions
    }
    if len(layouts) > 1 or instruction.opcode not in ("copy", "fusion"):
        return False
    opcodes = [inner.opcode for inner in module.called_instructions(instruction)]
    operations = [opcode for opcode in opcodes if opcode not in _MOVES]
    return len(operations) <= _MOST_OPERATIONS and _OPERATIONS.issuperset(operations)
