"""What a compiled step does, one operation after the other: how often, for how long, and how that is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from keras_tpu_ext.hardware import TpuGeneration
from keras_tpu_ext.preflight._hlo.flops import flops_of
from keras_tpu_ext.preflight._hlo.module import Computation, Instruction, Module
from keras_tpu_ext.preflight._hlo.shape import Shape

# Names for what was there before, or made while compiling: nothing is done for them.
_FREE = frozenset(
    """parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id add-dependency opt-barrier
    domain get-dimension-size iota""".split()  # noqa: SIM905
)
# Copies beside the work that is done meanwhile, and the ends of what was begun before.
_ASYNC = ("copy-start", "copy-done", "slice-start", "slice-done", "async-start", "async-update", "async-done")
COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_LOOKUPS, _UPDATES = ("gather", "dynamic-slice"), ("scatter", "dynamic-update-slice")

Source = Literal["compiler", "bytes", "network", "nothing"]


class Work(NamedTuple):
    """One operation of a step.

    Attributes:
        instruction: The operation.
        times: How often it runs in a step.
        seconds: Seconds of all these times on one device.
        source: Where that comes from: the compiler's cycles, a bound from the bytes that it moves in memory or over
            the network, or nothing where it takes no time of its own.
        flops: FLOPs of its products and convolutions, all times together.
        moved: Bytes that it moves from and to HBM, padding included, all times together.
        logical: The same without padding.
    """

    instruction: Instruction
    times: int
    seconds: float
    source: Source
    flops: float
    moved: int
    logical: int


class Timeline:
    """The operations of a module on one device.

    Args:
        module: The compiled module.
        generation: The TPU generation that it is compiled for.
        devices: Number of devices that take the step together.

    Attributes:
        work: The operations, in the order in which they run.
        unknown_loops: The names of loops for which nobody knows how often they run; they count once.
    """

    def __init__(self, module: Module, generation: TpuGeneration, devices: int) -> None:
        self._module = module
        self._generation = generation
        self._devices = devices
        self.unknown_loops: list[str] = []
        self.work = tuple(self._walk(module.entry, 1))

    def _walk(self, computation: Computation, times: int) -> Iterator[Work]:
        for instruction in computation.instructions:
            if instruction.opcode == "while":
                count = instruction.trip_count
                if count is None:
                    self.unknown_loops.append(instruction.name)
                for role in ("condition", "body"):
                    inner = self._module.computations[instruction.called[role]]
                    yield from self._walk(inner, times * (1 if count is None else count))
            elif instruction.opcode == "conditional":
                yield from self._dearest_branch(instruction, times)
            elif instruction.opcode == "call":
                yield from self._walk(self._module.computations[instruction.called["to_apply"]], times)
            else:
                yield self._one(computation, instruction, times)

    def _dearest_branch(self, instruction: Instruction, times: int) -> list[Work]:
        known, branches = self.unknown_loops, []
        for name in instruction.called.values():
            self.unknown_loops = []
            branches.append((list(self._walk(self._module.computations[name], times)), self.unknown_loops))
        dearest, unknown = max(branches, key=lambda branch: sum(work.seconds for work in branch[0]))
        self.unknown_loops = known + unknown
        return dearest

    def _one(self, computation: Computation, instruction: Instruction, times: int) -> Work:
        if instruction.opcode in _FREE or instruction.opcode in _ASYNC or instruction.opcode.endswith("-done"):
            return Work(instruction, times, 0.0, "nothing", 0.0, 0, 0)
        flops = times * self._flops(computation, instruction)
        moved, logical = (times * size for size in self._bytes(computation, instruction))
        if is_collective(instruction):
            seconds = times * self._network_seconds(computation, instruction)
            return Work(instruction, times, seconds, "network", flops, moved, logical)
        if instruction.cycles is not None:
            seconds = times * instruction.cycles / self._generation.clock_hz
            return Work(instruction, times, seconds, "compiler", flops, moved, logical)
        seconds = moved / self._generation.hbm_bandwidth_per_core
        return Work(instruction, times, seconds, "bytes" if seconds else "nothing", flops, moved, logical)

    def _flops(self, computation: Computation, instruction: Instruction) -> float:
        total = 0.0
        for name in _computations_in(self._module, instruction):
            inner = self._module.computations[name]
            shapes = {one.name: one.shape for one in inner.instructions}
            total += sum(flops_of(one, shapes) for one in inner.instructions)
        if instruction.opcode in ("convolution", "dot"):
            total += flops_of(instruction, {name: computation.by_name[name].shape for name in instruction.operands})
        return total

    def _bytes(self, computation: Computation, instruction: Instruction) -> tuple[int, int]:
        """Return the bytes that it moves from and to HBM, with and without padding."""
        read = [computation.by_name[name].shape for name in instruction.operands if name in computation.by_name]
        arrays = [shape for one in (*read, instruction.made) for shape in one.arrays() if shape.space == 0]
        opcodes = {instruction.opcode, *(one.opcode for one in self._module.inside(instruction))}
        if opcodes & {*_LOOKUPS, *_UPDATES}:
            arrays = _touched(arrays, instruction, opcodes)
        return sum(shape.padded_bytes for shape in arrays), sum(shape.bytes for shape in arrays)

    def _network_seconds(self, computation: Computation, instruction: Instruction) -> float:
        """Return the least time of a collective: as a ring that uses every link of a chip at once.

        Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 69(2), 2009.
        """
        size = instruction.made.bytes
        if instruction.opcode.startswith("reduce-scatter"):  # of whose result each device has a part
            size = sum(computation.by_name[name].shape.bytes for name in instruction.operands)
        rounds = 2 if instruction.opcode.startswith("all-reduce") else 1
        part = rounds * (self._devices - 1) / self._devices
        return part * size / (self._generation.ici_bandwidth / self._generation.cores_per_chip)


def is_collective(instruction: Instruction) -> bool:
    """Return whether devices exchange something in it; its end, where it has one of its own, does not count again."""
    return instruction.opcode.removesuffix("-start") in COLLECTIVES


def _computations_in(module: Module, instruction: Instruction) -> Iterator[str]:
    for name in instruction.called.values():
        if name in module.computations:
            yield name
            for inner in module.computations[name].instructions:
                yield from _computations_in(module, inner)


def _touched(arrays: list[Shape], instruction: Instruction, opcodes: set[str]) -> list[Shape]:
    """Return what a lookup or an update touches: rows, and not the table that they are in."""
    results = [shape.padded_bytes for shape in instruction.shape.arrays()]
    if opcodes & {*_UPDATES}:
        # The table that is updated in place is read and written where the updates are, once each.
        small = [shape for shape in arrays if shape.padded_bytes < max(results)]
        return small * 2 if small else arrays
    tables = [shape for shape in arrays if shape.padded_bytes >= sum(results)]
    if not tables:
        return arrays
    table = max(tables, key=lambda shape: shape.padded_bytes)
    return [*(shape for shape in arrays if shape is not table), *instruction.shape.arrays()]
